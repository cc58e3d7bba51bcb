"""Random schemas: whatever a random walk through the masks writes, an independent validator accepts."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.grammar.builder import mask_words
from headrace.grammar.matcher import GrammarMatcher
from tests.grammar.judging import schema_matcher, takes_value
from tests.grammar.vocabulary import END, TABLE

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([None, True, False, 0, 1, 2.5, "", "x", "yz", [], [1], {}, {"a": 1}])
SCALARS = st.one_of(
    st.just({"type": "string", "maxLength": 3}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-3, 3),
        st.integers(0, 9),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps)),
    st.builds(lambda value: {"const": value}, VALUES),
)


def objects(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, required, rest: {
            "type": "object",
            "properties": properties,
            "required": sorted(required & properties.keys()),
            "additionalProperties": False,
            **rest,
        },
        st.dictionaries(NAMES, children, max_size=3),
        st.sets(NAMES),
        st.sampled_from([{}, {"minProperties": 1}, {"maxProperties": 1}, {"dependentRequired": {"a": ["b"]}}]),
    )


def arrays(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, children, st.integers(0, 2)
    )


def combined(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = st.lists(children, min_size=2, max_size=2)
    return st.one_of(
        st.builds(lambda each: {"anyOf": each}, two),
        st.builds(lambda each: {"oneOf": each}, two),
        st.builds(lambda each: {"allOf": each}, two),
        st.builds(lambda each, other: {**each, "not": other}, objects(children), children),
        st.builds(
            lambda each: {"if": each[0], "then": each[1], "else": each[2]}, st.lists(children, min_size=3, max_size=3)
        ),
    )


SCHEMAS = st.recursive(
    SCALARS, lambda children: objects(children) | arrays(children) | combined(children), max_leaves=6
)


def walk(matcher: GrammarMatcher, rng: random.Random) -> str | None:
    """A random output of at most 400 tokens that prefers to end; ``None`` if it grew longer."""
    data = b""
    row = np.zeros(mask_words(TABLE.size), np.int32)
    for _ in range(400):
        matcher.fill_row(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        ends = [each for each in allowed.tolist() if each in (END, ord('"'), ord("]"), ord("}"))]
        token_id = rng.choice(ends) if ends and rng.random() < 0.5 else int(rng.choice(allowed))
        assert matcher.accept(token_id)
        if matcher.must_end:
            return (data if token_id == END else data + TABLE.token_bytes[token_id]).decode()
        data += TABLE.token_bytes[token_id]
    return None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 1 << 30))
def test_what_a_random_walk_writes_validates(schema: dict[str, Any], seed: int) -> None:
    try:
        matcher = schema_matcher(schema)
    except InvalidRequest:
        assume(False)
        raise
    text = walk(matcher.fork(), random.Random(seed))
    if text is not None:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=8))
def test_the_matcher_and_a_validator_agree_on_instances(schema: dict[str, Any], values: list[Any]) -> None:
    try:
        matcher = schema_matcher(schema)
    except InvalidRequest:
        assume(False)
        raise
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        assert takes_value(matcher, value) == validator.is_valid(value), value
