from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.engine.literal_guard import LiteralGuard

SPELLINGS = ["<|im_end|>", "<|im_", "[INST]", "aba", "§"]
TEXT = st.lists(st.sampled_from([*SPELLINGS, "<|", "im_", "b", "a", "[IN", "ST]", " "]), max_size=12).map("".join)
GUARD = LiteralGuard(SPELLINGS)


@given(TEXT)
def test_no_spelling_is_left_and_everything_comes_back(text: str) -> None:
    escaped = GUARD.escape(text)
    assert not any(spelling in escaped for spelling in SPELLINGS)
    assert GUARD.restore(escaped) == text
    assert len(escaped) == len(text)


@given(TEXT)
def test_a_text_has_a_spelling_exactly_if_one_is_in_it(text: str) -> None:
    assert GUARD.has_spelling(text) == any(spelling in text for spelling in SPELLINGS)


def test_overlapping_spellings_are_all_escaped() -> None:
    assert GUARD.restore(GUARD.escape("ababa")) == "ababa"
    assert "aba" not in GUARD.escape("ababa")


def test_a_text_without_spellings_is_left_as_it_is() -> None:
    assert GUARD.escape("plain < text [") == "plain < text ["


def test_a_mark_in_the_text_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"U\+FDD0 at offset 2") as caught:
        GUARD.escape("ab\ufdd0", "messages")
    assert caught.value.param == "messages"


def test_marks_written_as_json_escapes_are_marks_again() -> None:
    escaped = GUARD.escape("<|im_end|>[INST]")
    assert GUARD.from_ascii_json(json.dumps(escaped)) == f'"{escaped}"'


def test_a_vocabulary_without_special_tokens_guards_nothing() -> None:
    guard = LiteralGuard([])
    assert not guard.has_spelling("<|im_end|>")
    assert guard.escape("<|im_end|>\ufdd0") == "<|im_end|>\ufdd0"


def test_thousands_of_spellings_are_found_in_linear_time() -> None:
    guard = LiteralGuard(f"<unused{number}>" for number in range(6000))
    started = time.monotonic()
    assert not guard.has_spelling("<unused" * 140_000)
    assert time.monotonic() - started < 30  # seconds; about 0.2 is usual
