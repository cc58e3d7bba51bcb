"""Structural tags: free text, and what must follow where it spells a trigger."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.constraint import ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.grammar.matcher import GrammarMatcher
from tests.grammar.judging import matcher_for, takes
from tests.grammar.vocabulary import OTHER_END, encode

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ADD = {"begin": "<f=add>", "content": NUMBER, "end": "</f>"}
SUB = {"begin": "<f=sub>", "content": {"type": "regex", "pattern": "[xy]+"}, "end": "</f>"}


def tag(part: dict[str, Any]) -> GrammarMatcher:
    return matcher_for(ConstraintKind.STRUCTURAL_TAG, {"type": "structural_tag", "format": part})


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "const_string", "value": 'a"b\n'}, ['a"b\n'], ["a"]),
    (NUMBER, ["12"], ["x"]),
    ({"type": "regex", "pattern": r"\d+"}, ["12"], ["", "x"]),
    ({"type": "any_text"}, ["", "x\ny"], []),
    ({"type": "any_text", "excludes": ["no", "/"]}, ["yes"], ["no", "a/b", "say no more"]),
    ({"type": "sequence", "elements": [{"type": "const_string", "value": "n="}, NUMBER]}, ["n=4"], ["n=", "4"]),
    ({"type": "or", "elements": [{"type": "const_string", "value": "none"}, NUMBER]}, ["none", "4"], ["x"]),
    ({"type": "tag", **ADD}, ["<f=add>3</f>"], ["<f=add>x</f>", "<f=add>3"]),
    (
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
        ["<think>a < b</think>"],
        ["<think>a", "<think>a</think>b"],
    ),
    (
        {"type": "triggered_tags", "triggers": ["<f="], "tags": [ADD, SUB]},
        ["just text", "a <f=add>3</f> b", "<f=sub>xy</f><f=add>1</f>"],
        ["a <f=mul>3</f>", "<f=add>x</f>", "<f=add>3"],
    ),
    (
        {"type": "triggered_tags", "triggers": ["<f="], "tags": [ADD], "at_least_one": True},
        ["a <f=add>3</f> b"],
        ["just text"],
    ),
    (
        {"type": "triggered_tags", "triggers": ["<f="], "tags": [ADD], "at_least_one": True, "stop_after_first": True},
        ["<f=add>3</f>"],
        ["<f=add>3</f>x", ""],
    ),
    (
        {"type": "tags_with_separator", "tags": [ADD, SUB], "separator": ", ", "at_least_one": True},
        ["<f=add>3</f>", "<f=add>3</f>, <f=sub>x</f>"],
        ["", "<f=add>3</f><f=sub>x</f>"],
    ),
]


@pytest.mark.parametrize(("part", "good", "bad"), CASES)
def test_a_tag_takes_its_language(part: dict[str, Any], good: list[str], bad: list[str]) -> None:
    matcher = tag(part)
    assert [text for text in good if not takes(matcher, text)] == []
    assert [text for text in bad if takes(matcher, text)] == []


def test_the_older_dialect_is_read_too() -> None:
    source = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f="],
    }
    matcher = matcher_for(ConstraintKind.STRUCTURAL_TAG, source)
    assert takes(matcher, "so <f=add>4</f>.")
    assert not takes(matcher, "so <f=add>x</f>.")


def test_a_control_token_that_a_tag_names_is_that_token() -> None:
    matcher = tag(
        {"type": "triggered_tags", "triggers": ["<|other|>"], "tags": [{**ADD, "begin": "<|other|>", "end": ""}]}
    )
    ids = [*encode("x"), OTHER_END, *encode("12")]
    assert matcher.fork().accept_all(ids) == len(ids)
    assert matcher.fork().accept_all([OTHER_END, *encode("x")]) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "needs 'format'"),
        ({"format": {"type": "magic"}}, "#/format/type must be one of"),
        ({"format": {"type": "tag", "content": NUMBER, "end": ""}}, "#/format/begin is missing"),
        ({"format": {"type": "sequence", "elements": []}}, "#/format/elements must be a list"),
        ({"format": {"type": "triggered_tags", "triggers": ["<g"], "tags": [ADD]}}, "no tag begins with '<g'"),
        ({"format": {"type": "json_schema", "json_schema": {"uniqueItems": True}}}, "#/uniqueItems cannot be enforced"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(source: object, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        matcher_for(ConstraintKind.STRUCTURAL_TAG, json.dumps(source))
    assert words in refusal.value.message
