from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextDelta, TextStream
from tests.engine.test_stop_matcher import first_stop


def stream(tokens: list[bytes], stops: list[str], include_stop: bool = False, min_tokens: int = 0) -> TextStream:
    return TextStream(ByteDetokenizer(tokens), StopStrings(stops), include_stop, min_tokens)


def run(text_stream: TextStream, num_tokens: int) -> tuple[list[str], str | None]:
    """Push tokens 0, 1, ... until a stop; return the deltas and the stop."""
    texts: list[str] = []
    for token_id in range(num_tokens):
        delta = text_stream.push(token_id)
        texts.append(delta.text)
        if delta.stop is not None:
            return texts, delta.stop
    return [*texts, text_stream.finish()], None


@pytest.mark.parametrize(("include_stop", "expected"), [(False, "ABC"), (True, "ABCDEFGHIJ")])
def test_a_stop_spread_over_tokens_never_leaks(include_stop: bool, expected: str) -> None:
    tokens = [b"AB", b"CD", b"EF", b"GHI", b"JK"]
    texts, stop = run(stream(tokens, ["DEFGHIJ"], include_stop), len(tokens))
    assert ("".join(texts), stop) == (expected, "DEFGHIJ")
    assert all("D" not in text for text in texts[:-1])


def test_a_role_marker_split_after_its_first_word_is_cut_whole() -> None:
    texts, stop = run(stream([b"Sure.", b"\nUser", b":", b" hi"], ["\nUser:"]), 4)
    assert (texts, stop) == (["Sure.", "", ""], "\nUser:")


def test_a_near_miss_is_shown_as_soon_as_it_misses() -> None:
    texts, stop = run(stream([b"ABC", b"DEF", b"X"], ["DEFGHIJ"]), 3)
    assert (texts, stop) == (["ABC", "", "DEFX", ""], None)


def test_text_that_only_looks_like_a_stop_is_flushed_at_the_end() -> None:
    texts, stop = run(stream([b"ABC", b"DEF"], ["DEFGHIJ"]), 2)
    assert (texts, stop) == (["ABC", "", "DEF"], None)


def test_bytes_after_a_stop_in_the_same_token_are_dropped() -> None:
    assert stream([b"a.\xf0\x9f"], ["."]).push(0) == TextDelta("a", ".")


def test_the_first_min_tokens_cannot_end_the_text() -> None:
    texts, stop = run(stream([b"a.", b"b.", b"c.", b"d."], ["."], min_tokens=2), 4)
    assert (texts, stop) == (["a.", "b.", "c"], ".")


def test_without_stops_text_passes_straight_through() -> None:
    texts, stop = run(stream([b"a\xf0\x9f", b"\x99\x82b"], []), 2)
    assert (texts, stop) == (["a", "🙂b", ""], None)


@given(
    st.text(alphabet="ab🙂é", max_size=30),
    st.lists(st.text(alphabet="ab🙂é", min_size=1, max_size=5), max_size=4),
    st.booleans(),
    st.data(),
)
def test_any_split_into_tokens_gives_the_whole_text_definition(
    text: str, stops: list[str], include_stop: bool, data: st.DataObject
) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=12)))
    tokens = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    texts, stop = run(stream(tokens, stops, include_stop), len(tokens))
    expected = first_stop(text, stops)
    if expected is None:
        assert ("".join(texts), stop) == (text, None)
    else:
        before, expected_stop = expected
        assert ("".join(texts), stop) == (before + expected_stop if include_stop else before, expected_stop)
