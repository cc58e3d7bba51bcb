"""Who goes first, who gives way, how much a step may hold: the decisions that differ between policies.

A policy is asked, and told what happened through ``SchedulerListener``; it never touches blocks or starts
anything. Deadlines, fairness and cost models attach here and leave the scheduler's loop as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.scheduler.waiting_queue import KeyedQueue, SortKey, WaitingLine
from headrace.scheduler.waits import Waits

UNBOUNDED: Final = 1 << 30

NO_LIMIT: Final = math.inf
"""An urgency that everybody in the waiting line is below."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step may hold, and in which order running sequences and the waiting line take their turns.

    ``token_budget`` tokens are given out: first to ``first`` in order, then to ``rest``, each of which lets
    those that wait with an urgency below its own go before it, then to the waiting line. An urgency is a
    moment on the engine's clock when a token is due; lower is more urgent. Of those that wait,
    ``max_starts`` may start.
    """

    token_budget: int
    first: Iterable[Sequence]
    rest: list[tuple[float, Sequence]] = field(default_factory=list)
    max_starts: int = UNBOUNDED


class SchedulingPolicy(Protocol):
    """The decisions a scheduler asks for."""

    @property
    def line(self) -> WaitingLine:
        """Where sequences wait; its order is the policy's business."""
        ...

    def admit(self, seq: Sequence, now: float) -> None:
        """Agree to serve a request, of which ``seq`` is one sequence, before any work is done for it.

        Raises ``Overloaded`` to refuse it.
        """
        ...

    def shape_step(self, running: Collection[Sequence], now: float) -> StepShape:
        """Budget and order of the next step."""
        ...

    def victim(self, running: Iterable[Sequence], now: float) -> Sequence:
        """Which of ``running`` (at least one) gives its blocks back when they run out."""
        ...

    def num_tokens_to_start(self, seq: Sequence, running: Collection[Sequence]) -> int:
        """Room that must be free in the KV cache, besides a small margin, before ``seq`` may start beside others."""
        ...


class SchedulerListener:
    """Hears what the scheduler does, on its thread and at once; must be quick and change nothing of it.

    Override what is of interest; what is not overridden is ignored.
    """

    def on_queued(self, seq: Sequence) -> None:
        """A new sequence is about to wait for the first time."""

    def on_admitted(self, seq: Sequence, now: float) -> None:
        """A waiting sequence started; its ``num_computed_tokens`` came from the caches."""

    def on_planned(self, plan: StepPlan, waits: Waits, now: float) -> None:
        """A step was decided; ``waits`` tells who was left out of it and why."""

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        """A step was computed; its outcome has not been applied to ``running`` yet."""

    def on_preempted(self, seq: Sequence, now: float, cause: Sequence) -> None:
        """A running sequence gave its blocks back, since ``cause`` needed some, and waits again."""

    def on_finished(self, seq: Sequence) -> None:
        """A sequence ended, from wherever it was."""


class FcfsPolicy:
    """First come, first served: the earliest arrival runs first and the latest gives way first.

    Running sequences go before waiting ones, those with the fewest pending tokens first, so that a long prompt
    being computed never delays the streams beside it. The sequence with the lowest key is never a victim while
    another runs, so it always finishes: that is what rules out starvation and preemption cycles.
    """

    def __init__(self, max_num_batched_tokens: int, sort_key: Callable[[Sequence], SortKey] | None = None) -> None:
        self._max_num_batched_tokens = max_num_batched_tokens
        self._sort_key = arrival_key if sort_key is None else sort_key
        self._line = KeyedQueue(self._sort_key)

    @property
    def line(self) -> WaitingLine:
        return self._line

    def admit(self, seq: Sequence, now: float) -> None:
        pass  # the queue's bound is kept where requests come in

    def shape_step(self, running: Collection[Sequence], now: float) -> StepShape:
        return StepShape(self._max_num_batched_tokens, sorted(running, key=_num_pending_tokens))

    def victim(self, running: Iterable[Sequence], now: float) -> Sequence:
        return max(running, key=self._sort_key)

    def num_tokens_to_start(self, seq: Sequence, running: Collection[Sequence]) -> int:
        return seq.num_pending_tokens


class PriorityPolicy(FcfsPolicy):
    """Lower ``Request.priority`` first, arrival breaks ties."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        super().__init__(max_num_batched_tokens, priority_key)


def arrival_key(seq: Sequence) -> SortKey:
    return (seq.request.order_time, seq.seq_id)


def priority_key(seq: Sequence) -> SortKey:
    return (seq.request.priority, seq.request.order_time, seq.seq_id)


def _num_pending_tokens(seq: Sequence) -> int:
    return seq.num_pending_tokens
