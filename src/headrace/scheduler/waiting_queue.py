"""Where sequences wait: what a scheduler needs of such a place, and the one with a fixed order.

Whatever the order, the cost of a step must not grow with how many wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.sequence import Sequence, SequenceStatus

SortKey = tuple[float, ...]


class WaitingLine(Protocol):
    """Sequences with status WAITING, in an order of its own."""

    def __len__(self) -> int: ...

    def push(self, seq: Sequence) -> None:
        """Let a sequence wait: a new one, one that was preempted, or one popped that could not start."""
        ...

    def pop(self, urgency: float, now: float) -> Sequence | None:
        """Take the next sequence that is more urgent than ``urgency``, or ``None`` if there is none."""
        ...

    def discard(self, seq: Sequence) -> None:
        """Forget ``seq``, which waits here and whose status the caller has just changed."""
        ...

    def take_overdue(self, now: float) -> list[tuple[Sequence, HeadraceError]]:
        """Sequences for which it is too late, with what to tell their callers; they leave the line."""
        ...


class KeyedQueue:
    """Sequences in the order of a key that is fixed while they wait and different for any two of them.

    Removal is lazy: a sequence that stopped waiting stays in the heap until it comes up, and ``len`` counts
    only those that still wait. Push and pop are O(log n).
    """

    def __init__(self, sort_key: Callable[[Sequence], SortKey]) -> None:
        self._sort_key = sort_key
        self._heap: list[tuple[SortKey, Sequence]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, seq: Sequence) -> None:
        assert seq.status is SequenceStatus.WAITING
        heapq.heappush(self._heap, (self._sort_key(seq), seq))
        self._num_waiting += 1

    def pop(self, urgency: float, now: float) -> Sequence | None:
        """See ``WaitingLine.pop``; here running sequences always come first, so urgency does not matter."""
        while self._heap:
            seq = heapq.heappop(self._heap)[1]
            if seq.status is SequenceStatus.WAITING:
                self._num_waiting -= 1
                return seq
        return None

    def discard(self, seq: Sequence) -> None:
        assert seq.status is not SequenceStatus.WAITING
        self._num_waiting -= 1

    def take_overdue(self, now: float) -> list[tuple[Sequence, HeadraceError]]:
        return []
