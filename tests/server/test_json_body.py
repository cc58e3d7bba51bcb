"""Bodies before they have a meaning: strictness, offsets, depth, and the names of what is wrong."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.server.json_body import BodyType, Unsupported, check_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class Inner(msgspec.Struct):
    """A nested field."""

    size: int


class Example(msgspec.Struct):
    """A body."""

    count: int = 0
    ratio: float = 0.0
    flag: bool = False
    inner: list[Inner] = []


BODY = BodyType(Example, {"magic": Unsupported("leave it out", (None, 0))})


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ('{"count":true}', "count", "expected int, got bool"),
        ('{"count":1.0}', "count", "expected int, got float"),
        ('{"count":"1"}', "count", "expected int, got str"),
        ('{"ratio":true}', "ratio", "expected float, got bool"),
        ('{"flag":1}', "flag", "expected bool, got int"),
        ('{"inner":[{"size":1},{"size":"x"}]}', "inner[1].size", "expected int, got str"),
        ('{"inner":[{}]}', "inner[0].size", "is missing"),
        ('{"magic":false}', "magic", "leave it out"),
        ('{"magic":1}', "magic", "not supported"),
        ("[1]", None, "expected object"),
        ('{"ratio":NaN}', None, "byte 9"),
    ],
)
def test_what_is_wrong_is_named(body: str, param: str | None, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        BODY.decode(body.encode(), 8)
    assert caught.value.param == param
    assert words in caught.value.message


def test_neutral_values_of_unsupported_fields_pass() -> None:
    for value in ("null", "0"):
        assert BODY.decode(f'{{"magic":{value}}}'.encode(), 8).ignored_fields == ()


def test_unknown_fields_are_named_safely() -> None:
    assert BODY.decode(b'{"a-b":1,"\\u00e9\\r\\n":2,"":3}', 8).ignored_fields == ("a-b", "___", "_")


def refusal(body: bytes, max_depth: int) -> str:
    """The words with which a body is refused; empty if it is not."""
    try:
        check_json(body, max_depth)
    except InvalidRequest as error:
        return error.message
    return ""


@given(VALUES, st.integers(0, 6))
def test_depth_is_the_nesting_of_the_value(value: object, max_depth: int) -> None:
    words = refusal(json.dumps(value, ensure_ascii=False).encode(), max_depth)
    assert ("nested deeper" in words) == (_depth(value) > max_depth)


@given(st.text())
def test_escapes_are_refused_exactly_where_they_spell_no_text(text: str) -> None:
    body = json.dumps(text).encode()
    if "\x00" in text:
        with pytest.raises(InvalidRequest, match="NUL") as caught:
            check_json(body, 4)
        offset = int(caught.value.message.split("byte ")[1].split(",")[0])
        assert body[offset : offset + 6] == b"\\u0000"
        return
    check_json(body, 4)


@given(st.lists(st.sampled_from(["a", "\\\\", "\\n", "\\ud83d", "\\ude00", "\\u0041", "\\uD83D\\uDE00"])))
def test_surrogates_must_come_in_pairs(parts: list[str]) -> None:
    body = f'"{"".join(parts)}"'.encode()
    is_text = not any("\ud800" <= char <= "\udfff" for char in json.loads(body))
    assert ("surrogate" in refusal(body, 4)) == (not is_text)


def _depth(value: object) -> int:
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 0
