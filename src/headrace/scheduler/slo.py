"""The policy that keeps promises: steps as long as the streams can spare, the most urgent prompt first.

Joins what the other modules know (pace, costs, counters, lanes, admission, output lengths) into the answers a
``SchedulingPolicy`` gives. It does not know where blocks are or how a step is computed.

Two rules do most of the work. *Credit*: a running stream may fall behind only as far as it is ahead of its
pace, so the least credit in the batch says how long the next step may take, and the cost model how many prompt
tokens fill that time. *Earliest deadline*: whoever's next token is due first goes first, running or waiting,
so a long prompt with time to spare is interrupted by a short one without. (Ordering by the latest start instead,
``due - work``, lets long prompts interrupt short ones and loses 2 to 6 % of goodput under overload.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.core.request import FinishReason
from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.scheduler.admission import Admission, PrefillRate
from headrace.scheduler.cost_model import StepCostModel
from headrace.scheduler.meters import SchedulingMeters
from headrace.scheduler.output_lengths import OutputLengths, OutputReserve
from headrace.scheduler.pace import first_token_deadline, first_token_margin_s, next_token_due
from headrace.scheduler.policy import SchedulerListener, StepShape
from headrace.scheduler.step_budget import FEASIBLE_TPOT, MAX_STEP_S, BatchLoad, StepBudget, batch_load
from headrace.scheduler.waiting_lanes import Waiter, WaitingLanes

URGENT_S: Final = 0.05
"""A prompt that must start within so much is computed even beside streams that are behind."""

TARGETS_REMEMBERED_S: Final = 60.0
"""How long after a request with targets steps are kept short for the next one."""

CachedTokens = Callable[[Sequence], int]


class SloPolicy(SchedulerListener):
    """See ``SchedulingPolicy``; must also be among the scheduler's listeners.

    ``num_cached_tokens`` says what the prefix cache holds of a sequence. Requests without targets are served in
    order of arrival, within ``max_num_batched_tokens`` per step, as by ``FcfsPolicy``.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        meters: SchedulingMeters,
        num_cached_tokens: CachedTokens,
    ) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._meters = meters
        self._costs = meters.costs
        self._counters = meters.counters
        self._rate = PrefillRate()
        self._admission = Admission(meters.counters, self._rate)
        self._placement = _Placement(meters.costs, self._rate, num_cached_tokens, self._too_late)
        self._line = WaitingLanes(meters.counters, self._placement)
        self._lengths = OutputLengths()
        self._reserve = OutputReserve(self._lengths)
        self._chunks: list[tuple[float, Sequence]] = []
        self._targets_until = -math.inf
        self._budget = 0
        self._steady_rate = 0.0

    @property
    def line(self) -> WaitingLanes:
        return self._line

    # -- answers ------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, now: float) -> None:
        """See ``SchedulingPolicy.admit``. Costs O(waiting) for requests with targets."""
        arrival = self._line.new_waiter(seq)
        num_running = sum(
            chunk.num_pending_tokens for due, chunk in self._chunks if due <= arrival.due and not chunk.is_finished
        )
        displaced = self._admission.check(arrival, self._line.waiters(), num_running, now)
        if displaced is not None:
            self._line.refuse(displaced)

    def shape_step(self, running: Collection[Sequence], now: float) -> StepShape:
        costs = self._costs.costs
        min_tpot_s = FEASIBLE_TPOT * costs.decodes_s(1, 0)
        load = batch_load(running, now, min_tpot_s)
        chunks = [(next_token_due(seq), seq) for seq in load.chunks]
        chunks.sort(key=_due)
        self._chunks = chunks
        budget = StepBudget(costs, load, self._max_num_batched_tokens, min_tpot_s)
        may_start = len(self._line) > 0 and len(running) < self._max_num_seqs
        head = self._line.most_urgent(now) if may_start else None
        num_prefill = self._num_prefill_tokens(budget, load, head, now) if chunks or head is not None else 0
        self._steady_rate = budget.steady_rate()
        self._budget = len(load.streams) + num_prefill
        head_tpot_s = math.inf if head is None else head.seq.request.service_level.tpot_s
        return StepShape(self._budget, load.streams, chunks, budget.max_starts(head_tpot_s))

    def victim(self, running: Iterable[Sequence], now: float) -> Sequence:
        """Who can best afford it; never the first to have come while another runs, so that one always finishes."""
        by_age = sorted(running, key=_age)
        return max(by_age[1:] or by_age, key=lambda seq: self._affordability(seq, now))

    def num_tokens_to_start(self, seq: Sequence, running: Collection[Sequence]) -> int:
        reserve = self._reserve
        return seq.num_pending_tokens + reserve.num_tokens(seq) + sum(reserve.num_tokens(other) for other in running)

    def _num_prefill_tokens(self, budget: StepBudget, load: BatchLoad, head: Waiter | None, now: float) -> int:
        due, context, num_tokens = self._first_prompt(head)
        if not load.is_behind:
            has_targets = now < self._targets_until or load.tpot_s < math.inf
            return budget.num_prefill_tokens(budget.step_s(has_targets), context)
        if due - self._costs.costs.prefill_s(context, context + num_tokens) < now + URGENT_S:
            return min(num_tokens, budget.num_prefill_tokens(MAX_STEP_S, context))
        return budget.num_prefill_tokens(0.0, context)

    def _first_prompt(self, head: Waiter | None) -> tuple[float, int, int]:
        """When the prompt that will be worked on first is due, its computed and its pending tokens."""
        if self._chunks and (head is None or self._chunks[0][0] <= head.due):
            due, seq = self._chunks[0]
            return due, seq.num_computed_tokens, seq.num_pending_tokens
        assert head is not None
        return head.due, head.num_cached, head.num_uncached

    def _affordability(self, seq: Sequence, now: float) -> tuple[bool, float, float, int]:
        """Keeps its promise all the same, then the loosest tier, then the most slack, then the least to restore."""
        slack_s = next_token_due(seq) - self._placement.work_s(seq, 0) - now
        num_private = len(seq.block_table) - seq.num_shared_blocks
        return (slack_s >= 0, seq.request.service_level.tpot_s, slack_s, -num_private)

    def _too_late(self, waiter: Waiter) -> HeadraceError:
        return self._admission.too_late(waiter, sum(waiter.num_uncached for waiter in self._line.waiters()))

    # -- what happened -------------------------------------------------------------------------------

    def on_queued(self, seq: Sequence) -> None:
        if seq.request.service_level.has_targets:
            self._targets_until = seq.request.arrival_time + TARGETS_REMEMBERED_S

    def on_admitted(self, seq: Sequence, now: float) -> None:
        self._line.forget(seq)

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        self._reserve.on_step()
        if not self._costs.is_known:
            return
        num_new = self._meters.last_step.num_new_tokens
        is_full = num_new > 0 and self._meters.last_step.num_tokens >= self._budget
        self._rate.observe(num_new / result.elapsed_s if is_full and result.elapsed_s > 0 else self._steady_rate)

    def on_preempted(self, seq: Sequence, now: float, cause: Sequence) -> None:
        self._reserve.on_preempted()

    def on_finished(self, seq: Sequence) -> None:
        self._line.forget(seq)
        if seq.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._lengths.observe(seq)


class _Placement:
    """Moments from pace, costs and the rate of late; see ``waiting_lanes.Placement``.

    Until the costs are known, work is taken to need no time: nobody is refused on a guess.
    """

    def __init__(
        self,
        costs: StepCostModel,
        rate: PrefillRate,
        num_cached_tokens: CachedTokens,
        too_late: Callable[[Waiter], HeadraceError],
    ) -> None:
        self._costs = costs
        self._rate = rate
        self.num_cached_tokens = num_cached_tokens
        self.too_late = too_late

    def due(self, seq: Sequence) -> float:
        return next_token_due(seq)

    def cutoff(self, seq: Sequence, num_cached: int) -> float:
        if seq.num_preemptions > 0:
            return math.inf  # whoever has started is not sent away
        deadline = first_token_deadline(seq)
        if deadline == math.inf or not self._costs.is_known:
            return deadline
        return deadline - first_token_margin_s(seq) - self.work_s(seq, num_cached)

    def work_s(self, seq: Sequence, num_cached: int) -> float:
        """Seconds until the next token once work begins after ``num_cached`` tokens."""
        if not self._costs.is_known:
            return 0.0
        num_tokens = len(seq.token_ids)
        return max(self._costs.costs.prefill_s(num_cached, num_tokens), self._rate.seconds(num_tokens - num_cached))


def _due(chunk: tuple[float, Sequence]) -> float:
    return chunk[0]


def _age(seq: Sequence) -> tuple[float, int]:
    return (seq.request.order_time, seq.seq_id)
