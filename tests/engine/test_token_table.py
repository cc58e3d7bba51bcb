from __future__ import annotations

import pytest
import tokenizers

from headrace.engine.token_table import ByteLevelDecoder, SentencePieceDecoder, byte_level_alphabet, read_decoder

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
LLAMA = [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        ({"type": "ByteLevel", "add_prefix_space": True}, ByteLevelDecoder()),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, ByteLevelDecoder()),
        ({"type": "Sequence", "decoders": LLAMA}, SentencePieceDecoder("▁", True, 1)),
        ({"type": "Sequence", "decoders": LLAMA[:3]}, SentencePieceDecoder("▁", True, 0)),
        (
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            SentencePieceDecoder("▁", False, 1),
        ),
        (
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
            SentencePieceDecoder("▁", False, 0),
        ),
        (None, None),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, None),
        ({"type": "Sequence", "decoders": []}, None),
        ({"type": "Sequence", "decoders": [*LLAMA, {"type": "CTC"}]}, None),
        ({"type": "Replace", "pattern": {"Regex": "x+"}, "content": " "}, None),
        ({"type": "Fuse"}, None),
    ],
)
def test_decoders_are_read_as_tables_where_tokens_are_byte_strings(decoder: object, expected: object) -> None:
    assert read_decoder(decoder) == expected


def test_the_alphabet_is_that_of_the_library() -> None:
    alphabet = byte_level_alphabet()
    assert sorted(alphabet.values()) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert len(set(alphabet.values())) == 256


def test_byte_level_tokens_are_the_bytes_their_characters_stand_for() -> None:
    alphabet = byte_level_alphabet()
    pieces = ["".join(alphabet[byte] for byte in data) for data in (b" the", bytes(range(256)), "é".encode())]
    assert ByteLevelDecoder().token_bytes(pieces) == [b" the", bytes(range(256)), "é".encode()]


def test_byte_level_tokens_outside_the_alphabet_are_plain_text() -> None:
    assert ByteLevelDecoder().token_bytes(["a b", "\u2581", "\xa0", None]) == [b"a b", "▁".encode(), b"\xc2\xa0", b""]


def test_sentencepiece_tokens_are_text_with_marked_spaces_and_byte_tokens() -> None:
    decoder = SentencePieceDecoder("▁", True, 1)
    assert decoder.token_bytes(["▁the", "<0xE2>", "<0xZZ>", "▁▁", None]) == [b" the", b"\xe2", b"<0xZZ>", b"  ", b""]
    without_bytes = SentencePieceDecoder("▁", False, 1)
    assert without_bytes.token_bytes(["<0xE2>"]) == [b"<0xE2>"]
