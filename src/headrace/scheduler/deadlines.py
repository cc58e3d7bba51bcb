"""Which requests have used up the time they gave themselves, found without looking at the others."""

from __future__ import annotations

import heapq
import math

from headrace.core.errors import DeadlineExceeded
from headrace.core.sequence import Sequence


class Deadlines:
    """Sequences whose request has a deadline, the next to pass first. Push and take are O(log n).

    One that ended earlier stays until its deadline passes, and is then left out.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def push(self, seq: Sequence) -> None:
        deadline_s = seq.request.service_level.deadline_s
        if deadline_s < math.inf:
            heapq.heappush(self._heap, (seq.request.arrival_time + deadline_s, seq.seq_id, seq))

    def take_passed(self, now: float) -> list[tuple[Sequence, DeadlineExceeded]]:
        """Sequences that have not ended and whose deadline is over, with what to tell their callers."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            seq = heapq.heappop(self._heap)[2]
            if not seq.is_finished:
                passed.append((seq, _error(seq)))
        return passed


def _error(seq: Sequence) -> DeadlineExceeded:
    deadline_s = seq.request.service_level.deadline_s
    return DeadlineExceeded(
        f"the request did not finish within its {deadline_s:g} s; {seq.num_output_tokens} tokens were generated; "
        "give it more time, or ask for fewer tokens"
    )
