"""Which requests have used up the time they gave themselves, found without looking at the others."""

from __future__ import annotations

import heapq
import math

from headrace.core.errors import DeadlineExceeded
from headrace.core.sequence import Sequence


class Deadlines:
    """Sequences whose request has a deadline, the next to pass first. Everything is O(log n).

    One that ends earlier stays in the heap until it comes up or most of the heap is of its kind.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._num_live = 0

    def push(self, seq: Sequence) -> None:
        """Watch a new sequence, if its request has a deadline."""
        if seq.request.service_level.deadline_s < math.inf:
            self._num_live += 1
            heapq.heappush(self._heap, (_deadline(seq), seq.seq_id, seq))

    def discard(self, seq: Sequence) -> None:
        """A watched sequence has just ended, for whatever reason."""
        if seq.request.service_level.deadline_s == math.inf:
            return
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + 64:
            self._heap = [item for item in self._heap if not item[2].is_finished]
            heapq.heapify(self._heap)

    def take_passed(self, now: float) -> list[tuple[Sequence, DeadlineExceeded]]:
        """Sequences that have not ended and whose deadline is over, with what to tell their callers."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            seq = heapq.heappop(self._heap)[2]
            if not seq.is_finished:
                passed.append((seq, _error(seq)))
        return passed


def _deadline(seq: Sequence) -> float:
    return seq.request.arrival_time + seq.request.service_level.deadline_s


def _error(seq: Sequence) -> DeadlineExceeded:
    deadline_s = seq.request.service_level.deadline_s
    return DeadlineExceeded(
        f"the request did not finish within its {deadline_s:g} s; {seq.num_output_tokens} tokens were generated; "
        "give it more time, or ask for fewer tokens"
    )
