"""The bytes each token adds to the text, for the two kinds of vocabulary whose tokens are byte strings.

Owns the reading of a ``tokenizer.json``'s decoder as a table: byte-level (each character of a token stands
for one byte, GPT-2's alphabet) and SentencePiece (``▁`` is a space, ``<0xE2>`` a byte). Decoders that look at
neighbours (WordPiece and the like) have no such table. Does not know the tokenizer library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

SPACE_MARK = "▁"

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable(msgspec.Struct, frozen=True):
    """Tokens that are byte strings, by id; the special ones are control tokens, the last ones end a text."""

    shown_bytes: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]


@dataclass(frozen=True, slots=True)
class ByteLevelDecoder:
    """Characters of a token stand for bytes."""

    num_stripped_spaces: int = 0

    def token_bytes(self, pieces: Sequence[str | None]) -> list[bytes]:
        to_latin1 = _byte_level_translation()
        return [b"" if piece is None else _byte_level_bytes(piece, to_latin1) for piece in pieces]


@dataclass(frozen=True, slots=True)
class SentencePieceDecoder:
    """Tokens are text with ``space_mark`` for a space, besides byte tokens if there is ``has_byte_pieces``.

    ``num_stripped_spaces`` leading spaces of a whole text were put there by encoding and are no part of it.
    """

    space_mark: str
    has_byte_pieces: bool
    num_stripped_spaces: int

    def token_bytes(self, pieces: Sequence[str | None]) -> list[bytes]:
        return [b"" if piece is None else self._bytes(piece) for piece in pieces]

    def _bytes(self, piece: str) -> bytes:
        if self.has_byte_pieces and (byte := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        return piece.replace(self.space_mark, " ").encode()


TableDecoder = ByteLevelDecoder | SentencePieceDecoder


def read_decoder(decoder: object) -> TableDecoder | None:
    """Read a ``tokenizer.json``'s ``decoder`` entry; ``None`` if its tokens have no bytes of their own."""
    steps = _steps(decoder)
    kinds = {step.get("type") for step in steps}
    if kinds == {"ByteLevel"}:
        return ByteLevelDecoder()
    if not kinds or not kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return None
    space_mark, num_stripped = None, 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(mark)}, "content": " "} if len(mark) == 1:
                space_mark = mark
            case {"type": "Metaspace", "replacement": str(mark)}:
                space_mark = mark
                num_stripped += step.get("prepend_scheme", "always") != "never"
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                num_stripped += start
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                return None
    if space_mark is None:
        return None
    return SentencePieceDecoder(space_mark, "ByteFallback" in kinds, num_stripped)


def byte_level_alphabet() -> dict[int, str]:
    """GPT-2's alphabet: the printable character that stands for each byte (Radford et al., 2019).

    Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return {byte: stand_ins.get(byte, chr(byte)) for byte in range(256)}


def _steps(decoder: object) -> list[Mapping[str, object]]:
    """A decoder as the flat list of its steps; an empty list if it is not understood."""
    match decoder:
        case {"type": "Sequence", "decoders": [*decoders]}:
            nested = [_steps(each) for each in decoders]
            return [step for steps in nested for step in steps] if all(nested) else []
        case {"type": str()}:
            return [cast("Mapping[str, object]", decoder)]
    return []


def _byte_level_translation() -> dict[int, int]:
    """For ``str.translate``: stand-ins to their bytes as Latin-1; other Latin-1 characters out of the way."""
    alphabet = byte_level_alphabet()
    strangers = {code: 0xFFFF for code in range(256) if chr(code) not in alphabet.values()}
    return strangers | {ord(char): byte for byte, char in alphabet.items()}


def _byte_level_bytes(piece: str, to_latin1: dict[int, int]) -> bytes:
    """Bytes of a token; one with a character outside the alphabet is plain text (an added token)."""
    try:
        return piece.translate(to_latin1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()
