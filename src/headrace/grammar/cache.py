"""Compiled grammars by constraint: least recently used ones go when their memory is needed."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from typing import Generic, TypeVar

from headrace.core.constraint import Constraint

G = TypeVar("G")

_UNSETTLED_BYTES = 1 << 16
"""What a compilation in progress, or the memory that a source is invalid, counts for."""


class GrammarCache(Generic[G]):
    """Futures by constraint within a budget of bytes. What others still hold lives on after it was evicted."""

    def __init__(self, budget_bytes: int) -> None:
        self._most_bytes = self._budget_bytes = budget_bytes
        self._entries: OrderedDict[Constraint, tuple[Future[G], int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, constraint: Constraint) -> Future[G] | None:
        entry = self._entries.get(constraint)
        if entry is None:
            return None
        self._entries.move_to_end(constraint)
        return entry[0]

    def put(self, constraint: Constraint, result: Future[G]) -> None:
        """Add a compilation in progress."""
        self._insert(constraint, result, _UNSETTLED_BYTES + len(constraint.source))

    def settle(self, constraint: Constraint, num_bytes: int) -> None:
        """Say what an entry really takes; it may be the one that must go."""
        entry = self._entries.get(constraint)
        if entry is not None:
            self._insert(constraint, entry[0], num_bytes + len(constraint.source))

    def stop_growing(self) -> None:
        """From now on take no more than is taken."""
        self._budget_bytes = min(self._budget_bytes, self.num_bytes)

    def resume_growing(self) -> None:
        self._budget_bytes = self._most_bytes

    def drop(self, constraint: Constraint) -> None:
        entry = self._entries.pop(constraint, None)
        if entry is not None:
            self.num_bytes -= entry[1]

    def _insert(self, constraint: Constraint, result: Future[G], num_bytes: int) -> None:
        self.drop(constraint)
        self._entries[constraint] = (result, num_bytes)
        self.num_bytes += num_bytes
        while self.num_bytes > self._budget_bytes and self._entries:
            self.drop(next(iter(self._entries)))
