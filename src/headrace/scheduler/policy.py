"""Who goes first, who gives way, how much a step may hold: the decisions that differ between policies.

A policy is asked; it holds no queue and changes nothing. Deadlines, fairness and cost models attach here and
leave the scheduler's loop as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.core.sequence import Sequence

SortKey = tuple[float, ...]


class SchedulingPolicy(Protocol):
    """The three decisions a scheduler asks for."""

    def sort_key(self, seq: Sequence) -> SortKey:
        """Lower is served first. Fixed for the life of a sequence and different for any two of them."""
        ...

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """Which of ``running`` (at least one) gives its blocks back when they run out."""
        ...

    def token_budget(self, running: Iterable[Sequence], num_waiting: int, now: float) -> int:
        """Most tokens the next step may compute."""
        ...


class FcfsPolicy:
    """First come, first served: the earliest arrival runs first and the latest gives way first.

    The sequence with the lowest key is never a victim while another runs, so it always finishes: that is
    what rules out starvation and preemption cycles.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_num_batched_tokens = max_num_batched_tokens

    def sort_key(self, seq: Sequence) -> SortKey:
        return (seq.request.arrival_time, seq.seq_id)

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        return max(running, key=self.sort_key)

    def token_budget(self, running: Iterable[Sequence], num_waiting: int, now: float) -> int:
        return self._max_num_batched_tokens


class PriorityPolicy(FcfsPolicy):
    """Lower ``Request.priority`` first, arrival breaks ties."""

    def sort_key(self, seq: Sequence) -> SortKey:
        return (seq.request.priority, seq.request.arrival_time, seq.seq_id)
