"""Keeping control tokens' spellings that a user typed from becoming control tokens.

Owns the escape: the first character of every spelling of a special token is replaced by a mark, one per
distinct first character. A tokenizer that matches special tokens first and turns marks back into characters
afterwards then sees plain text, in one piece with what stands around it, so that words are cut as if the
spelling meant nothing. Does not know templates or the tokenizer library.

Marks are code points that Unicode sets aside for internal use (noncharacters U+FDD0 to U+FDEF, section 23.7),
and past those 32 the end of the last private use plane.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from headrace.core.errors import InvalidRequest

_MAX_KEY_CHARS = 3


class LiteralGuard:
    """Finds and escapes the spellings of special tokens. Immutable.

    ``first_char_of`` maps each mark to the character it stands for.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = frozenset(spellings)
        assert "" not in self._spellings
        first_chars = sorted({spelling[0] for spelling in self._spellings})
        marks = [*map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0x10F000, 0x10FFFE))]
        assert len(first_chars) <= len(marks)
        self._mark_of = dict(zip(first_chars, marks, strict=False))
        self.first_char_of: Mapping[str, str] = {mark: char for char, mark in self._mark_of.items()}
        self._key_chars = min((len(spelling) for spelling in self._spellings), default=1)
        self._key_chars = min(self._key_chars, _MAX_KEY_CHARS)
        self._lengths = self._lengths_by_key()
        self._candidates = _any_of(first_chars)
        self._marks = _any_of(self.first_char_of)

    def has_spelling(self, text: str) -> bool:
        """Whether the text contains a special token's spelling."""
        return next(self._starts(text), None) is not None

    def escape(self, text: str, param: str | None = None) -> str:
        """Replace the first character of every spelling, overlapping ones too, by its mark.

        Raises ``InvalidRequest`` for text that itself contains a mark. Costs O(text).
        """
        if (mark := self._marks.search(text)) is not None:
            raise InvalidRequest(
                f"the text has the reserved character U+{ord(mark[0]):04X} at offset {mark.start()} beside the "
                "spelling of a control token; remove one of them",
                param,
            )
        parts: list[str] = []
        end = 0
        for start in self._starts(text):
            parts += (text[end:start], self._mark_of[text[start]])
            end = start + 1
        return "".join(parts) + text[end:]

    def restore(self, text: str) -> str:
        """Undo ``escape``."""
        return self._marks.sub(lambda mark: self.first_char_of[mark[0]], text)

    def from_ascii_json(self, text: str) -> str:
        """Marks written as JSON escapes (a template may ask for ASCII) as marks again."""
        for mark in self.first_char_of:
            text = text.replace(json.dumps(mark)[1:-1], mark)
        return text

    def _lengths_by_key(self) -> dict[str, list[int]]:
        lengths: dict[str, set[int]] = {}
        for spelling in self._spellings:
            lengths.setdefault(spelling[: self._key_chars], set()).add(len(spelling))
        return {key: sorted(each) for key, each in lengths.items()}

    def _starts(self, text: str) -> Iterator[int]:
        """Every position at which a spelling begins.

        Vocabularies have up to thousands of special tokens that begin alike: a position is looked up by its
        first few characters, then by each length that occurs behind them.
        """
        for candidate in self._candidates.finditer(text):
            start = candidate.start()
            for length in self._lengths.get(text[start : start + self._key_chars], ()):
                if text[start : start + length] in self._spellings:
                    yield start
                    break


def _any_of(chars: Iterable[str]) -> re.Pattern[str]:
    alternatives = "".join(map(re.escape, chars))
    return re.compile(f"[{alternatives}]" if alternatives else r"(?!)")
