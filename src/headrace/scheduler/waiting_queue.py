"""Waiting sequences in policy order, at a cost that does not grow with how many wait."""

from __future__ import annotations

import heapq

from headrace.core.sequence import Sequence, SequenceStatus
from headrace.scheduler.policy import SchedulingPolicy, SortKey


class WaitingQueue:
    """Priority queue of WAITING sequences.

    Removal is lazy: a sequence that stopped waiting stays in the heap until it comes up, and ``len`` counts
    only those that still wait. Push and pop are O(log n).
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[SortKey, Sequence]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, seq: Sequence) -> None:
        assert seq.status is SequenceStatus.WAITING
        heapq.heappush(self._heap, (self._policy.sort_key(seq), seq))
        self._num_waiting += 1

    def pop(self) -> Sequence | None:
        """Take the first waiting sequence, or ``None`` if nobody waits."""
        while self._heap:
            seq = heapq.heappop(self._heap)[1]
            if seq.status is SequenceStatus.WAITING:
                self._num_waiting -= 1
                return seq
        return None

    def discard(self, seq: Sequence) -> None:
        """Forget ``seq``, which must be in the queue and whose status the caller has just changed."""
        assert seq.status is not SequenceStatus.WAITING
        self._num_waiting -= 1
