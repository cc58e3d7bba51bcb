"""The record of one sequence's life, and the counts it is measured by.

A running count of what the engine does (``Odometer``) is read when a sequence changes its phase; the difference of two
readings is what happened in between. So a step costs the same however many sequences decode in it, and what is kept of
a sequence is bounded. It does not know the scheduler, nor who asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.core.sequence import Sequence
from headrace.core.timeline import CacheUse, Phase, SequenceTimeline, SlowestStep, Span
from headrace.engine.constraint_meter import ConstraintMeter

MAX_SPANS: Final = 48
"""Spans listed of one sequence; of further ones only the seconds are kept."""

MAX_CHUNKS: Final = 16
MAX_STEPS: Final = 4096
"""Steps in which the slowest of a span is looked for."""

STEP_IN_PROGRESS: Final = "step_in_progress"
"""The reason for the part of a wait before the first decision after it began."""

WAITING: Final = frozenset({Phase.RESTART, Phase.GRAMMAR, Phase.QUEUE, Phase.PREEMPTED})


class Reading(NamedTuple):
    """What the engine had done at some moment."""

    num_steps: int
    num_tokens: int
    num_prompt_tokens: int
    transfer_s: float
    waits_s: dict[str, float]


class Step(NamedTuple):
    """One step, and the longest chunk of a prompt in it."""

    end: float
    duration_s: float
    num_tokens: int
    num_prompt_tokens: int
    num_chunk_tokens: int = 0
    chunk_request_id: str = ""
    chunk_tenant: str = ""


class Part(NamedTuple):
    """Some tokens of a life and when they were computed, about evenly over that time."""

    start: float
    end: float
    num_tokens: int

    def num_tokens_between(self, start: float, end: float) -> float:
        duration_s = self.end - self.start
        return self.num_tokens * (min(self.end, end) - max(self.start, start)) / duration_s if duration_s > 0 else 0.0


class Odometer:
    """Counts of what the engine does that only grow, and its latest steps."""

    def __init__(self) -> None:
        self.waits_s: dict[str, float] = {}
        self._num_steps = 0
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._transfer_s = 0.0
        self._steps: deque[Step] = deque(maxlen=MAX_STEPS)

    def read(self) -> Reading:
        return Reading(
            self._num_steps, self._num_tokens, self._num_prompt_tokens, self._transfer_s, self.waits_s.copy()
        )

    def count(self, step: Step, transfer_s: float, reason: str | None) -> None:
        """Take in a step, and why the waiting line had to let it pass."""
        self._steps.append(step)
        self._num_steps += 1
        self._num_tokens += step.num_tokens
        self._num_prompt_tokens += step.num_prompt_tokens
        self._transfer_s += transfer_s
        if reason is not None:
            self.waits_s[reason] = self.waits_s.get(reason, 0.0) + step.duration_s

    def slowest_step(self, since: float) -> Step | None:
        """The longest step that ended after ``since``. Costs a look at each of them."""
        slowest: Step | None = None
        for step in reversed(self._steps):
            if step.end <= since:
                break
            if slowest is None or step.duration_s > slowest.duration_s:
                slowest = step
        return slowest


@dataclass(slots=True)
class Life:
    """What one sequence did so far, and the phase it is in since ``since``.

    ``seq`` is let go when it ends: its tokens are not kept. ``num_tokens`` were computed of it in this phase; in
    DECODE it is the number of output tokens the phase began with. ``held_s`` are the seconds in which it was passed
    over for reasons of its own.
    """

    seq: Sequence | None
    request_id: str
    tenant: str
    arrival: float
    num_waiting: int
    num_running: int
    phase: Phase
    since: float
    reading: Reading
    num_tokens: int = 0
    num_kept_tokens: int = 0
    num_saved_steps: int = 0
    chunks: list[int] = field(default_factory=list)
    held_s: dict[str, float] = field(default_factory=dict)
    caused_by: str = ""
    spans: list[Span] = field(default_factory=list)
    num_unlisted_spans: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    cache: CacheUse | None = None
    constraint: ConstraintMeter | None = None
    ending: SequenceTimeline | None = None
    end: float | None = None

    def change(self, phase: Phase, now: float, odometer: Odometer) -> None:
        """Close the phase it is in and begin another."""
        self._keep(self.span(now, odometer))
        self.phase, self.since, self.reading = phase, now, odometer.read()
        self.num_tokens = self.num_kept_tokens = self.num_saved_steps = 0
        self.chunks, self.held_s, self.caused_by = [], {}, ""

    def finish(self, now: float, odometer: Odometer) -> None:
        """Close the last phase and let the sequence go."""
        assert self.seq is not None
        self._keep(self.span(now, odometer))
        self.end = now
        self.ending = self.told(self.seq, now, [])
        self.seq = None

    def compute(self, num_tokens: int) -> None:
        """Note a chunk of the prompt."""
        self.num_tokens += num_tokens
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(num_tokens)

    def hold(self, reason: str, seconds: float) -> None:
        self.held_s[reason] = self.held_s.get(reason, 0.0) + seconds

    def span(self, now: float, odometer: Odometer) -> Span:
        """What happened in the present phase up to ``now``."""
        then, here = self.reading, odometer.read()
        own = self._num_own_tokens()
        own_prompt = 0 if self.phase is Phase.DECODE else own
        is_waiting = self.phase in WAITING
        return Span(
            phase=self.phase,
            start_s=self.since - self.arrival,
            duration_s=now - self.since,
            num_steps=here.num_steps - then.num_steps,
            num_tokens=own,
            num_other_tokens=max(0, here.num_tokens - then.num_tokens - own),
            num_other_prompt_tokens=max(0, here.num_prompt_tokens - then.num_prompt_tokens - own_prompt),
            transfer_s=here.transfer_s - then.transfer_s,
            chunks=tuple(self.chunks),
            reasons=self._reasons(now, here) if is_waiting else {},
            slowest_step=None if is_waiting else self._slowest_step(odometer),
            num_saved_steps=self.num_saved_steps,
            caused_by=self.caused_by,
            num_kept_tokens=self.num_kept_tokens,
        )

    def work(self, now: float) -> list[Part]:
        """What was computed for it so far, span by span."""
        parts = [
            Part(start := self.arrival + span.start_s, start + span.duration_s, span.num_tokens)
            for span in self.spans
            if span.num_tokens
        ]
        if self.seq is not None and (num_tokens := self._num_own_tokens()):
            parts.append(Part(self.since, now, num_tokens))
        return parts

    def told(self, seq: Sequence, now: float, spans: list[Span]) -> SequenceTimeline:
        """The life as it is told, with ``spans``."""
        seconds = dict(self.seconds)
        if self.end is None:
            seconds[self.phase.value] = seconds.get(self.phase.value, 0.0) + now - self.since
        reason = seq.finish_reason
        return SequenceTimeline(
            request_id=self.request_id,
            index=seq.index,
            tenant=self.tenant,
            service_class=seq.request.service_class,
            state=seq.status.value if reason is None else reason.value,
            age_s=now - self.arrival,
            num_prompt_tokens=seq.num_prompt_tokens,
            num_output_tokens=seq.num_output_tokens,
            num_waiting=self.num_waiting,
            num_running=self.num_running,
            seconds=seconds,
            cache=self.cache,
            num_preemptions=seq.num_preemptions,
            spans=tuple(spans),
            num_unlisted_spans=self.num_unlisted_spans,
            constraint=None if self.constraint is None else self.constraint.told(),
        )

    def _num_own_tokens(self) -> int:
        if self.phase is Phase.DECODE and self.seq is not None:
            return max(0, self.seq.num_output_tokens - self.num_tokens)
        return self.num_tokens

    def _keep(self, span: Span) -> None:
        self.seconds[span.phase.value] = self.seconds.get(span.phase.value, 0.0) + span.duration_s
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
        else:
            self.num_unlisted_spans += 1

    def _reasons(self, now: float, here: Reading) -> dict[str, float]:
        """Seconds of a wait by reason: the sequence's own first, then the line's, then the step that was running."""
        if self.phase in (Phase.RESTART, Phase.GRAMMAR):
            return {}
        reasons = dict(self.held_s)
        left = max(0.0, now - self.since - sum(reasons.values()))
        for reason, seconds in here.waits_s.items():
            of_line = min(left, seconds - self.reading.waits_s.get(reason, 0.0))
            if of_line > 0:
                reasons[reason] = reasons.get(reason, 0.0) + of_line
                left -= of_line
        if left > 0:
            reasons[STEP_IN_PROGRESS] = left
        return reasons

    def _slowest_step(self, odometer: Odometer) -> SlowestStep | None:
        step = odometer.slowest_step(self.since)
        if step is None:
            return None
        name = step.chunk_request_id if step.chunk_tenant == self.tenant else ""
        return SlowestStep(step.duration_s, step.num_tokens, step.num_chunk_tokens, name)
