from __future__ import annotations

import json
import random

import pytest

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.grammar.explain import allowed_bytes, explain
from headrace.grammar.pictures import render_dot, render_svg, render_text
from headrace.grammar.shorthand import read_shorthand
from headrace.grammar.trial import byte_matcher

PERSON = Constraint(ConstraintKind.JSON_SCHEMA, read_shorthand('{"name": string, "age": integer}', 10), "")


def test_the_classic_exercise_has_few_states_and_shows_what_is_forced() -> None:
    automaton = explain(PERSON)
    assert not automaton.is_cut
    assert len(automaton.states) <= 20
    (first,) = automaton.states[0].edges
    assert first.text == b'{"name":"'
    end = automaton.follow(b'{"name":"Bo","age":42}')
    assert end is not None
    assert end.may_end
    assert automaton.follow(b'{"name":1') is None


@pytest.mark.parametrize(
    "constraint",
    [
        PERSON,
        Constraint(ConstraintKind.REGEX, "(ab|a)*c?"),
        Constraint(ConstraintKind.EBNF, 'root ::= "x" [0-9]{2} ("," "x")*'),
        Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": ["ab", "abc", "b", 1, null]}'),
    ],
)
def test_automaton_and_matcher_agree_on_random_walks(constraint: Constraint) -> None:
    automaton, start = explain(constraint), byte_matcher(constraint)
    for seed in range(100):
        rng, matcher, data = random.Random(seed), start.fork(), b""
        while not matcher.must_end and len(data) < 60:
            byte = rng.choice(allowed_bytes(matcher) or [0])
            if not matcher.accept(byte):
                break
            data += bytes([byte])
            state = automaton.follow(data)
            if state is not None:
                assert state.may_end == matcher.may_end, data
        assert not matcher.must_end or automaton.follow(data) is not None


def test_a_grammar_without_an_end_is_cut_and_says_so() -> None:
    balanced = Constraint(ConstraintKind.EBNF, 'root ::= "(" root? ")"')
    automaton = explain(balanced, max_states=10)
    assert automaton.is_cut
    assert "cut" in render_text(automaton, {})


def test_pictures_show_every_state_and_edge() -> None:
    automaton = explain(Constraint(ConstraintKind.REGEX, "a(b|[c-e])"))
    text = render_text(automaton, {1: ["`b`"]})
    assert "state 0  forced" in text
    assert "tokens: `b`" in text
    dot = render_dot(automaton)
    assert dot.count("->") == sum(len(state.edges) for state in automaton.states)
    assert "doublecircle" in dot
    svg = render_svg(automaton)
    assert svg.startswith("<svg")
    assert svg.count("<path d=") == 1 + dot.count("->")


@pytest.mark.parametrize(
    ("source", "schema"),
    [
        ('{"type": "null"}', {"type": "null"}),
        ("[string]", {"type": "array", "items": {"type": "string"}}),
        (
            '{"a": {"b": any}, "c": "x", "d": [integer, true]}',
            {
                "type": "object",
                "properties": {
                    "a": {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": False},
                    "c": {"const": "x"},
                    "d": {"type": "array", "prefixItems": [{"type": "integer"}, {"const": True}], "items": False},
                },
                "required": ["a", "c", "d"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_schemas_are_read_in_short(source: str, schema: object) -> None:
    assert json.loads(read_shorthand(source, 10)) == schema


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'text' is no type"):
        read_shorthand('{"a": text}', 10)
