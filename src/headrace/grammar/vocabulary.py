"""A model's tokens as the grammar library reads them.

Owns the one conversion between the two. It does not know tokenizers: it is given bytes, and a function that
encodes text where forced tokens must be the tokenizer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llguidance
import msgspec

Encode = Callable[[str], list[int]]
"""Text to token ids, with spellings of control tokens read as text."""


class VocabularyTable(msgspec.Struct, frozen=True):
    """Every token of a model, as plain data that a process can be sent.

    ``token_bytes[t]`` are the bytes token ``t`` adds to the text, for a control token its spelling; empty for an id
    that is never generated. ``end_token_ids`` end a sequence.
    """

    token_bytes: Sequence[bytes]
    special_token_ids: Sequence[int]
    end_token_ids: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.token_bytes)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Control tokens by spelling, for grammars that name them."""
        spellings = {
            token_id: self.token_bytes[token_id].decode(errors="replace") for token_id in self.special_token_ids
        }
        return {spelling: token_id for token_id, spelling in spellings.items() if spelling}


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """The library's idea of a tokenizer; the attributes' names are its own."""

    eos_token_id: int
    bos_token_id: int | None
    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    encode: Encode

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):  # asked once, to find out what is taken
            raise TypeError("text only")
        return self.encode(text)


NO_END_TOKEN = b"<|end of output|>"
"""Spelling of the end token that a table without any gets, because the library needs one."""


def library_tokenizer(table: VocabularyTable, encode: Encode | None = None) -> llguidance.LLTokenizer:
    """The library's tokenizer. Costs about 0.1 s and 30 MB for 50,000 tokens, five times that for 250,000.

    Without ``encode`` texts are cut greedily, which is not how a model would write them: good for trying a grammar
    out, not for forcing tokens.
    """
    tokens, special = list(table.token_bytes), list(table.special_token_ids)
    end_ids = list(table.end_token_ids)
    if not end_ids:
        end_ids = [len(tokens)]
        tokens.append(NO_END_TOKEN)
        special.append(end_ids[0])
    if encode is None:
        plain = llguidance.TokenizerWrapper(_Wrapped(end_ids[0], None, tokens, special, _encode_nothing))
        encode = llguidance.LLTokenizer(plain, n_vocab=len(tokens), eos_token=end_ids, slices=[]).greedy_tokenize
    wrapped = llguidance.TokenizerWrapper(_Wrapped(end_ids[0], None, tokens, special, encode))
    return llguidance.LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=end_ids)


def _encode_nothing(text: str) -> list[int]:
    return []
