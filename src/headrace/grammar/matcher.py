"""One sequence's place in its grammar.

Owns what the library leaves to its callers: the end of a sequence as a step that can be taken back, every stop token
of the request and not only the model's own, and the difference between "may end" and "must end". A token moves the
grammar by one state; what may come next is a row of a token mask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import llguidance
import numpy as np
from numpy.typing import NDArray

from headrace.grammar.builder import library_error

MaskRow = NDArray[np.int32]
"""``[ceil(vocab_size / 32)]``: bit ``t % 32`` of word ``t // 32`` says whether token ``t`` may come next."""


class RowFiller(Protocol):
    """What fills a sequence's row of a step's mask."""

    @property
    def binds(self) -> bool:
        """Whether anything is forbidden to come next; if not, no row is needed."""
        ...

    @property
    def library(self) -> llguidance.LLMatcher | None:
        """The library's matcher, whose mask the row is filled with first; ``None`` leaves it full."""
        ...

    def finish_row(self, row: MaskRow) -> None:
        """Turn that mask into the sequence's."""
        ...


class Matcher(RowFiller, Protocol):
    """Follows one sequence."""

    @property
    def failure(self) -> str: ...

    @property
    def must_end(self) -> bool: ...

    def accept(self, token_id: int) -> bool: ...

    def accept_all(self, token_ids: Sequence[int]) -> int: ...

    def rollback(self, num_tokens: int) -> None: ...

    def forced_tokens(self) -> list[int]: ...


class AnyText:
    """The matcher of an answer that is free: every token may come, none must."""

    binds = False
    library = None
    failure = ""
    must_end = False

    def accept(self, token_id: int) -> bool:
        return True

    def accept_all(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        """Nothing is kept of tokens."""

    def forced_tokens(self) -> list[int]:
        return []

    def finish_row(self, row: MaskRow) -> None:
        """The row stays full."""


class GrammarMatcher:
    """Follows one sequence. ``stop_token_ids`` are all the tokens that end it. One thread at a time."""

    __slots__ = ("_has_ended", "_library", "_num_tokens", "_stop_token_ids")
    binds = True

    def __init__(self, library: llguidance.LLMatcher, stop_token_ids: Collection[int]) -> None:
        self._library = library
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_tokens = 0
        self._has_ended = False

    @property
    def library(self) -> llguidance.LLMatcher:
        """The library's matcher, for computing masks of many at once."""
        return self._library

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, the one that ended the sequence included."""
        return self._num_tokens

    @property
    def failure(self) -> str:
        """Why the grammar cannot be followed any further, if it cannot: a limit of the library was reached."""
        return library_error(self._library) if self._library.is_error() else ""

    @property
    def may_end(self) -> bool:
        """Whether the output so far satisfies the constraint."""
        return self._has_ended or self._library.is_accepting()

    @property
    def must_end(self) -> bool:
        """Whether the output satisfies the constraint and nothing may follow."""
        return self._has_ended or (self._library.is_stopped() and not self._library.is_error())

    def accept(self, token_id: int) -> bool:
        """Move on by one token; ``False``, with nothing changed, for one that may not come here."""
        if self._has_ended:
            return False
        if token_id in self._stop_token_ids and self._library.is_accepting():
            self._has_ended = True
        elif self._library.is_stopped() or self._library.try_consume_tokens([token_id]) != 1:
            return False
        self._num_tokens += 1
        return True

    def accept_all(self, token_ids: Sequence[int]) -> int:
        """Move on as far as the tokens may come; how many were accepted. Replays an output after a restart."""
        for index, token_id in enumerate(token_ids):
            if not self.accept(token_id):
                return index
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens, exactly. There must be that many."""
        assert 0 <= num_tokens <= self._num_tokens
        self._num_tokens -= num_tokens
        if self._has_ended and num_tokens > 0:
            self._has_ended = False
            num_tokens -= 1
        if num_tokens and not self._library.rollback(num_tokens):
            raise RuntimeError(f"the grammar cannot go back {num_tokens} tokens: {library_error(self._library)}")

    def fork(self) -> GrammarMatcher:
        """An independent matcher at the same place."""
        copy = GrammarMatcher(self._library.deep_copy(), self._stop_token_ids)
        copy._num_tokens, copy._has_ended = self._num_tokens, self._has_ended
        return copy

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, in the tokenizer's own encoding; those it could still merge are left out."""
        return [] if self._has_ended or self._library.is_stopped() else self._library.compute_ff_tokens()

    def finish_row(self, row: MaskRow) -> None:
        """Turn the library's mask of this place into the sequence's: stop tokens only where it may end.

        A failed grammar gets a full row, so that the step goes on; whoever reads ``failure`` ends the sequence.
        """
        if self._library.is_error():
            row.fill(-1)
            return
        may_end = self.may_end
        before = row.copy() if not may_end else None
        if may_end:
            allow(row, self._stop_token_ids)
        else:
            forbid(row, self._stop_token_ids)
        if before is not None and not row.any():
            row[:] = before  # the client stops at a token that the grammar needs here

    def fill_row(self, row: MaskRow) -> None:
        """The mask of this one sequence; ``MaskFiller`` computes those of a whole step at once."""
        self._library.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self.finish_row(row)


def allow(row: MaskRow, token_ids: Iterable[int]) -> None:
    """Set the bits of some tokens."""
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << (token_id % 32))


def forbid(row: MaskRow, token_ids: Iterable[int]) -> None:
    """Clear the bits of some tokens."""
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id // 32] &= ~np.uint32(1 << (token_id % 32))
