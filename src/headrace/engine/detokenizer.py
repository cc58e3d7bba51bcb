"""Token ids to text, one token at a time, for one sequence.

Owns the promise that text handed out never changes: a character is emitted when its last byte has come, so a
client never sees a replacement character that later bytes would have mended. Knows a table of token bytes and
nothing of vocabularies, stop strings or streams.

The text is that of a continuation: a first token ``" world"`` keeps its leading space, because it follows a
prompt.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "�"

_MAX_UNSETTLED_TOKENS = 8
"""A character has at most four bytes, so at most four tokens; text unsettled for longer is invalid for good."""


class Detokenizer(Protocol):
    """Text of a growing row of tokens; the concatenation of all answers is the text of all tokens."""

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain and was not returned before."""
        ...

    def flush(self) -> str:
        """Return what is left, with U+FFFD for an incomplete character. No ``push`` may follow."""
        ...


class ByteDetokenizer:
    """Detokenizer of a vocabulary whose tokens are byte strings: one look-up and one C call per token.

    ``token_bytes[id]`` are the bytes a token adds. Ids past the end of the table have no text: models pad
    their vocabulary to round sizes. Invalid bytes become U+FFFD as in ``bytes.decode("utf-8", "replace")``
    over all bytes at once (Unicode 15, section 3.9, "substitution of maximal subparts").
    """

    __slots__ = ("_pending", "_token_bytes")

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._pending = b""

    def push(self, token_id: int) -> str:
        if token_id >= len(self._token_bytes):
            return ""
        data = self._token_bytes[token_id]
        if self._pending:
            data = self._pending + data
        text, num_used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[num_used:]
        return text

    def flush(self) -> str:
        text, self._pending = self._pending.decode("utf-8", "replace"), b""
        return text


class PrefixDiffDetokenizer:
    """Detokenizer for any ``decode``: the text of a window of tokens with the new one, less that without it.

    The window starts at the previous emission, so context-dependent joins (WordPiece's ``##``) come out right
    and a push costs one or two decodes of a few tokens.
    """

    __slots__ = ("_context_start", "_decode", "_emitted_end", "_token_ids")

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self._context_start = 0  # tokens [_context_start, _emitted_end) are emitted and give context
        self._emitted_end = 0

    def push(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        text = self._new_text()
        is_settled = bool(text) and not text.endswith(REPLACEMENT)
        if not is_settled and len(self._token_ids) - self._emitted_end < _MAX_UNSETTLED_TOKENS:
            return ""
        self._context_start, self._emitted_end = self._emitted_end, len(self._token_ids)
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._context_start = self._emitted_end = len(self._token_ids)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._token_ids[self._context_start : self._emitted_end])
        return self._decode(self._token_ids[self._context_start :])[len(before) :]
