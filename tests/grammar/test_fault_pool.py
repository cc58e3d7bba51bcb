"""The fault pool: inputs that went wrong elsewhere, each under its number. Those that need a server are in
``tests/server/test_constrained.py``, those about masks and rollback in ``test_matcher.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.vocabulary import library_tokenizer
from headrace.grammar.worker import Bench, judge
from tests.grammar.judging import matcher_for, schema_matcher, takes, takes_value
from tests.grammar.vocabulary import TABLE

REGEX, LARK = ConstraintKind.REGEX, ConstraintKind.LARK

BASE = {
    "$defs": {"Base": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 10}}, "required": ["x"]}}
}

SCHEMAS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "g01_a_length_beside_a_pattern": ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ["abc"], ["abcd"]),
    "g02_all_branches_of_all_of": (
        {
            **BASE,
            "allOf": [
                {"$ref": "#/$defs/Base"},
                {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]},
            ],
        },
        [{"x": 12, "y": "a"}],
        [{"x": 1, "y": "a"}, {"x": 12}, 7],
    ),
    "g03_siblings_of_any_of": (
        {
            "type": "object",
            "properties": {"modifier": {"type": "string"}, "a": {"type": "string"}},
            "additionalProperties": False,
            "anyOf": [{"required": ["modifier"]}, {"required": ["a"]}],
        },
        [{"a": "1"}, {"modifier": "x"}],
        [7, {}, {"z": 1}],
    ),
    "g07_bounds_exclusive": ({"type": "number", "exclusiveMinimum": 0}, [0.1, 5], [0, -1]),
    "g07_bounds_lower": ({"type": "number", "minimum": 2}, [2, 3.5], [1, 1.99]),
    "g07_bounds_both": ({"type": "number", "minimum": 1, "maximum": 5}, [1, 5, 4.9], [5.7, 0]),
    "g07_bounds_negative": ({"type": "integer", "minimum": -5}, [-5, -1, 0, 9], [-6]),
    "g08_bounds_of_eleven_digits": (
        {"type": "integer", "minimum": 0, "maximum": 20_000_000_000},
        [20_000_000_000, 0],
        [20_000_000_001, 30_000_000_000],
    ),
    "g09_classes_beyond_ascii": (
        {"type": "string", "pattern": "^[\u0660-\u0669]*$"},
        ["\u0663\u0664", ""],
        ["12", "\u0627"],
    ),
    "g09_classes_of_letters": ({"type": "string", "pattern": "^[\u0627-\u064a]$"}, ["\u0628"], ["a", "\u0628\u0628"]),
    "g24_patterns_that_name_a_property": (
        {
            "type": "object",
            "properties": {"score": {"multipleOf": 5}},
            "patternProperties": {"^score$": {"type": "integer"}},
            "required": ["score"],
            "additionalProperties": False,
        },
        [{"score": 15}],
        [{"score": 14}],
    ),
    "g28_a_pattern_without_a_type": ({"pattern": "^a+$"}, ["aa", 7, None], ["b"]),
    "g28_a_format_without_a_type": ({"format": "date"}, ["2026-11-29", 7], ["x"]),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    schema, good, bad = SCHEMAS[name]
    matcher = schema_matcher(schema)
    assert [value for value in good if not takes_value(matcher, value)] == []
    assert [value for value in bad if takes_value(matcher, value)] == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "#/uniqueItems"),
        ({"type": "array", "contains": {"type": "string"}}, "#/contains"),
        ({"properties": {"a": {"not": {"pattern": "x"}}}}, "#/properties/a/not/pattern"),
    ],
)
def test_g04_a_keyword_that_cannot_be_enforced_is_refused_by_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        schema_matcher(schema)
    assert place in refusal.value.message


def test_g04_the_same_keywords_are_enforced_where_they_can_be() -> None:
    unique = schema_matcher({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True})
    assert takes_value(unique, ["b", "a"])
    assert not takes_value(unique, ["a", "a"])


def test_g05_an_empty_enum_is_refused_where_it_stands() -> None:
    with pytest.raises(InvalidRequest, match="#/properties/x/enum is empty"):
        schema_matcher({"properties": {"x": {"enum": []}}, "required": ["x"]})


def test_g06_control_characters_in_strings_are_escaped() -> None:
    matcher = schema_matcher({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
    assert takes(matcher, '{"text":"a\\tb"}')
    assert not takes(matcher, '{"text":"a\tb"}')


@pytest.mark.parametrize(
    ("regex", "good", "bad"),
    [
        (r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d|)\.){3}(25[0-5]|\d)", ["1.2.3.4", "..1.5"], ["1.2.3"]),
        (r"\/\*(\*+[^*\/]|[^*])*\*+\/", ["/* a */", "/***/"], ["/* a"]),
        (r"\S+", ["[a]"], ["", "a b"]),
        (r"^(|.*)$", ["", "abc"], ["a\nb"]),
    ],
)
def test_g10_regexes_say_what_any_engine_says(regex: str, good: list[str], bad: list[str]) -> None:
    matcher = matcher_for(REGEX, regex)
    assert [text for text in good if not takes(matcher, text)] == []
    assert [text for text in bad if takes(matcher, text)] == []


@pytest.mark.parametrize("regex", ['(["', "[.*"])
def test_g12_a_broken_regex_is_refused_with_a_caret(regex: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        matcher_for(REGEX, regex)
    assert "^" in refusal.value.message
    assert "unclosed" in refusal.value.message


def test_g13_choices_nested_deeply_are_settled_or_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(12):
        schema = {"oneOf": [{"type": "object", "properties": {name + str(level): schema}} for name in "ab"]}
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    verdict = judge(constraint, Bench(library_tokenizer(TABLE), GrammarLimits(), {}))
    assert verdict.grammar is None
    assert verdict.message


def test_g15_a_declared_name_cannot_come_as_an_additional_one() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": {"type": "string"}}
    matcher = schema_matcher(schema)
    assert takes_value(matcher, {"a": 1, "b": 2, "ab": "x"})
    assert not takes_value(matcher, {"b": 2, "a": "x"})


@pytest.mark.parametrize(
    ("lark", "text"),
    [
        ('start: "#" foo\nfoo: "x"', "#x"),
        ('start: "a \\" b"', 'a " b'),
        ('start: "don\'t" | "can\'t"', "don't"),
    ],
)
def test_g16_quotes_and_hashes_in_lark_are_literal(lark: str, text: str) -> None:
    assert takes(matcher_for(LARK, lark), text)


def test_g26_a_thousand_optional_properties_work() -> None:
    names = [f"p{index}" for index in range(1000)]
    properties = {name: {"type": "integer"} for name in names}
    matcher = schema_matcher({"type": "object", "properties": properties, "additionalProperties": False})
    assert takes_value(matcher, {"p3": 1, "p500": 2, "p999": 3})
    assert not takes_value(matcher, {"p1000": 1})


def test_g27_a_long_chain_of_rules_is_refused_before_it_can_overflow_a_stack() -> None:
    chain = "start: r0\n" + "\n".join(f"r{index}: r{index + 1}" for index in range(3000)) + '\nr3000: "a"'
    with pytest.raises(InvalidRequest, match="3002 rules but at most 2000"):
        compile_constraint(Constraint(LARK, chain), GrammarLimits())


@pytest.mark.parametrize("bound", ["5", True, None, [1]])
def test_the_opposite_of_a_bound_that_is_no_number_is_refused_by_its_place(bound: object) -> None:
    """It once ended the process that tries constraints out."""
    with pytest.raises(InvalidRequest, match="#/not/minimum must be a number"):
        schema_matcher({"not": {"minimum": bound}})
