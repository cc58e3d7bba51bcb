from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.detokenizer import ByteDetokenizer, Detokenizer, PrefixDiffDetokenizer

ALL_BYTES = [bytes([value]) for value in range(256)]


def deltas(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("text", ["🙂", "語", "🇩🇪", "é", "👩‍👩‍👧", "a🙂b"])
def test_a_character_split_over_tokens_is_never_shown_broken(text: str) -> None:
    parts = deltas(ByteDetokenizer(ALL_BYTES), list(text.encode()))
    assert not any("�" in part for part in parts)
    assert "".join(parts) == text
    assert all(part == "" or len(part) == 1 for part in parts)


def test_a_flag_of_two_code_points_comes_one_code_point_at_a_time() -> None:
    parts = deltas(ByteDetokenizer(ALL_BYTES), list("🇩🇪".encode()))
    assert parts == ["", "", "", "🇩", "", "", "", "🇪", ""]


def test_an_invalid_byte_becomes_one_replacement_character_at_once() -> None:
    detokenizer = ByteDetokenizer([b"a", b"\xff", b"b"])
    assert deltas(detokenizer, [0, 1, 2]) == ["a", "�", "b", ""]


def test_a_character_cut_off_by_the_end_is_replaced_by_the_flush_only() -> None:
    detokenizer = ByteDetokenizer([b"a\xf0\x9f", b"\x99"])
    assert deltas(detokenizer, [0, 1]) == ["a", "", "�"]


def test_a_character_broken_off_by_another_is_replaced_before_it() -> None:
    detokenizer = ByteDetokenizer([b"\xf0\x9f", b"x"])
    assert deltas(detokenizer, [0, 1]) == ["", "�x", ""]


def test_ids_past_the_table_have_no_text_and_keep_a_pending_character() -> None:
    detokenizer = ByteDetokenizer([b"\xc3", b"\xa9"])
    assert deltas(detokenizer, [0, 7, 1]) == ["", "", "é", ""]


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_deltas_of_any_bytes_join_to_the_text_of_all_bytes(tokens: list[bytes]) -> None:
    parts = deltas(ByteDetokenizer(tokens), list(range(len(tokens))))
    assert "".join(parts) == b"".join(tokens).decode("utf-8", "replace")


@given(st.text(max_size=12), st.data())
def test_valid_text_is_never_shown_broken_before_the_end(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=8)))
    tokens = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    parts = deltas(ByteDetokenizer(tokens), list(range(len(tokens))))
    assert "".join(parts) == text
    assert parts[-1] == ""


def wordpiece_decode(token_ids: list[int]) -> str:
    words = ["un", "##believ", "##able", "story", "##s", "!"]
    text = " ".join(words[token_id] for token_id in token_ids)
    return text.replace(" ##", "").replace("##", "").replace(" !", "!")


@given(st.lists(st.integers(0, 5), max_size=20))
def test_prefix_diff_joins_to_the_decode_of_all_tokens(token_ids: list[int]) -> None:
    parts = deltas(PrefixDiffDetokenizer(wordpiece_decode), token_ids)
    assert "".join(parts) == wordpiece_decode(token_ids)


def byte_decode(token_ids: list[int]) -> str:
    return bytes(token_ids).decode("utf-8", "replace")


@given(st.text(max_size=12))
def test_prefix_diff_never_shows_a_broken_character(text: str) -> None:
    parts = deltas(PrefixDiffDetokenizer(byte_decode), list(text.encode()))
    assert "".join(parts) == text
    assert text.count("�") == "".join(parts).count("�")


def test_prefix_diff_lets_invalid_bytes_go_after_a_bounded_wait() -> None:
    detokenizer = PrefixDiffDetokenizer(byte_decode)
    parts = [detokenizer.push(0xFF) for _ in range(64)]
    assert "".join(parts) == "�" * 64
