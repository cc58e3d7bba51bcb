"""Where the time of every request went, recorded as it passes.

Owns the records of live sequences and of the latest that finished, fed as one listener of the scheduler. It changes
nothing and knows neither texts nor HTTP. Costs a step a few microseconds, and memory that is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from headrace.cache.radix_node import RadixNode
from headrace.core.clock import Clock
from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.core.timeline import CacheUse, Neighbour, Phase, SequenceTimeline, Span
from headrace.engine.constraint_meter import ConstraintMeter
from headrace.engine.timeline_life import WAITING, Life, Odometer, Part, Step
from headrace.scheduler.policy import SchedulerListener
from headrace.scheduler.waits import Waits

MAX_FINISHED: Final = 512
"""Finished sequences that are remembered."""

MAX_NEIGHBOURS: Final = 5
MAX_SPANS_WITH_NEIGHBOURS: Final = 6
"""The longest spans of a life are told with those that were beside it."""

MAX_TOLD: Final = 16
"""Sequences in an answer, the latest; several requests may have the same id one after another."""


class Timelines(Protocol):
    """What an engine needs of its timelines."""

    def find(self, request_id: str) -> list[SequenceTimeline]:
        """The sequences of a request, or of those whose id starts so, the latest request first."""
        ...

    def preempted_s(self, seq_id: int) -> float:
        """How long a sequence waited and computed again because of preemptions."""
        ...

    def constrain(self, seq_id: int, meter: ConstraintMeter) -> None:
        """A queued sequence follows a constraint; ``meter`` grows with it."""
        ...


class NoTimelines:
    """For engines that record none."""

    def find(self, request_id: str) -> list[SequenceTimeline]:
        return []

    def preempted_s(self, seq_id: int) -> float:
        return 0.0

    def constrain(self, seq_id: int, meter: ConstraintMeter) -> None:
        """Nothing is kept."""


class Work(NamedTuple):
    """Tokens computed for one life."""

    life: Life
    part: Part


class TimelineRecorder(SchedulerListener):
    """Records lives and answers for them. One thread only."""

    def __init__(self, clock: Clock, block_size: int) -> None:
        self._clock = clock
        self._block_size = block_size
        self._odometer = Odometer()
        self._live: dict[int, Life] = {}
        self._finished: OrderedDict[int, Life] = OrderedDict()
        self._in_prompt: dict[int, Life] = {}
        self._num_waiting = 0
        self._waits = Waits()
        self._planned_at = 0.0

    # -- what the scheduler tells -------------------------------------------------------------------

    def on_queued(self, seq: Sequence) -> None:
        request = seq.request
        life = self._live[seq.seq_id] = Life(
            seq=seq,
            request_id=request.request_id,
            tenant=request.tenant,
            arrival=request.arrival_time,
            num_waiting=self._num_waiting,
            num_running=len(self._live) - self._num_waiting,
            phase=_first_phase(seq),
            since=request.arrival_time,
            reading=self._odometer.read(),
        )
        self._num_waiting += 1
        if life.phase is not Phase.QUEUE:
            life.change(Phase.QUEUE, self._clock.now(), self._odometer)

    def on_admitted(self, seq: Sequence, now: float) -> None:
        life = self._live[seq.seq_id]
        is_first = life.phase is Phase.QUEUE
        if is_first:
            life.cache = self._cache_use(seq)
        self._num_waiting -= 1
        life.change(Phase.PREFILL if is_first else Phase.RECOMPUTE, now, self._odometer)
        life.num_kept_tokens = seq.num_computed_tokens
        self._in_prompt[seq.seq_id] = life

    def on_planned(self, plan: StepPlan, waits: Waits, now: float) -> None:
        self._waits, self._planned_at = waits, now

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        duration_s, waits = now - self._planned_at, self._waits
        reason = None if waits.reason is None else waits.reason.value
        step = self._step(plan, duration_s, now)
        self._odometer.count(step, result.transfer_s, reason)
        if step.num_tokens > len(plan.scheduled):
            self._note_jumps(plan)
        for seq, held_for in waits.held:
            life = self._live.get(seq.seq_id)
            if life is not None and life.phase in WAITING:
                life.hold(held_for.value, duration_s)
        if self._in_prompt:
            self._note_chunks(plan, now)

    def on_preempted(self, seq: Sequence, now: float, cause: Sequence) -> None:
        life = self._live[seq.seq_id]
        self._in_prompt.pop(seq.seq_id, None)
        self._num_waiting += 1
        life.change(Phase.PREEMPTED, now, self._odometer)
        life.caused_by = _name_for(life, self._live.get(cause.seq_id))

    def on_finished(self, seq: Sequence) -> None:
        life = self._live.pop(seq.seq_id)
        self._in_prompt.pop(seq.seq_id, None)
        self._num_waiting -= life.phase in WAITING
        life.finish(self._clock.now(), self._odometer)
        self._finished[seq.seq_id] = life
        if len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)

    # -- what is asked ------------------------------------------------------------------------------

    def find(self, request_id: str) -> list[SequenceTimeline]:
        """See ``Timelines.find``. Costs a few milliseconds for each sequence of the answer, between two steps."""
        remembered = [*self._finished.values(), *self._live.values()]
        found = [life for life in remembered if _is_named(life.request_id, request_id)]
        if not found:
            return []
        found.sort(key=lambda life: -life.arrival)
        now = self._clock.now()
        work = [Work(life, part) for life in remembered for part in life.work(now)]
        return [self._told(life, now, work) for life in found[:MAX_TOLD]]

    def preempted_s(self, seq_id: int) -> float:
        life = self._live.get(seq_id) or self._finished.get(seq_id)
        if life is None:
            return 0.0
        return sum(life.seconds.get(phase.value, 0.0) for phase in (Phase.PREEMPTED, Phase.RECOMPUTE))

    def constrain(self, seq_id: int, meter: ConstraintMeter) -> None:
        self._live[seq_id].constraint = meter

    def _told(self, life: Life, now: float, work: list[Work]) -> SequenceTimeline:
        spans = life.spans if life.seq is None else [*life.spans, life.span(now, self._odometer)]
        longest = sorted(spans, key=lambda span: -span.duration_s)[:MAX_SPANS_WITH_NEIGHBOURS]
        told = [_with_neighbours(life, span, work) if span in longest else span for span in spans]
        if life.ending is not None:
            return msgspec.structs.replace(life.ending, spans=tuple(told))
        assert life.seq is not None
        return life.told(life.seq, now, told)

    # -- details ------------------------------------------------------------------------------------

    def _step(self, plan: StepPlan, duration_s: float, now: float) -> Step:
        num_prompt_tokens = num_chunk_tokens = 0
        request_id = tenant = ""
        if self._in_prompt:
            for item in plan.scheduled:
                life = self._in_prompt.get(item.seq_id)
                if life is None:
                    continue
                count = len(item.token_ids)
                num_prompt_tokens += count
                if count > num_chunk_tokens:
                    num_chunk_tokens, request_id, tenant = count, life.request_id, life.tenant
        return Step(now, duration_s, plan.num_tokens, num_prompt_tokens, num_chunk_tokens, request_id, tenant)

    def _note_jumps(self, plan: StepPlan) -> None:
        """Tokens beyond the first of a decoding sequence were forced by its grammar, and computed with it."""
        for item in plan.scheduled:
            if len(item.token_ids) > 1 and item.seq_id not in self._in_prompt:
                self._live[item.seq_id].num_saved_steps += len(item.token_ids) - 1

    def _note_chunks(self, plan: StepPlan, now: float) -> None:
        """What the step computed of prompts; one that is complete has had its first token."""
        for item in plan.scheduled:
            life = self._in_prompt.get(item.seq_id)
            if life is None:
                continue
            life.compute(len(item.token_ids))
            if item.sample is not None:
                del self._in_prompt[item.seq_id]
                life.change(Phase.DECODE, now, self._odometer)
                assert life.seq is not None
                life.num_tokens = life.seq.num_output_tokens + 1  # the one this step brings came before the phase

    def _cache_use(self, seq: Sequence) -> CacheUse:
        num_cached = seq.num_shared_blocks * self._block_size
        node = seq.prefix_node
        has_parted = isinstance(node, RadixNode) and bool(node.children)
        return CacheUse(num_cached, seq.num_computed_tokens - num_cached, has_parted)


def _first_phase(seq: Sequence) -> Phase:
    """What a sequence was doing until the scheduler got to know it."""
    if seq.num_output_tokens > 0:
        return Phase.RESTART
    return Phase.QUEUE if seq.request.constraint is None else Phase.GRAMMAR


def _is_named(request_id: str, asked: str) -> bool:
    """Whether an id is the one asked for, or that with the kind of the reply before it or a distinction behind it."""
    if request_id == asked:
        return True
    kind, _, rest = request_id.partition("-")
    name = asked.removeprefix(f"{kind}-")
    return bool(name) and f"{rest}-".startswith(f"{name}-")


def _name_for(life: Life, other: Life | None) -> str:
    """What the owner of ``life`` may know of another's name."""
    return other.request_id if other is not None and other.tenant == life.tenant else ""


def _with_neighbours(life: Life, span: Span, work: list[Work]) -> Span:
    """The span with the requests that most was computed for meanwhile, an estimate where spans overlap in part."""
    start = life.arrival + span.start_s
    end = start + span.duration_s
    shares: dict[str, float] = {}
    for other, part in work:
        if part.start < end and part.end > start and other.request_id != life.request_id:
            name = _name_for(life, other)
            shares[name] = shares.get(name, 0.0) + part.num_tokens_between(start, end)
    scale = min(1.0, span.num_other_tokens / max(1.0, sum(shares.values())))
    ranked = sorted(((num * scale, name) for name, num in shares.items() if num * scale >= 1), reverse=True)
    behind = tuple(Neighbour(name, round(num)) for num, name in ranked[:MAX_NEIGHBOURS])
    return msgspec.structs.replace(span, behind=behind)
