"""How long the next step may take, and how many prompt tokens fill that time.

Owns the arithmetic of credit: pure functions of the running sequences, the cost model and the moment. It does
not know who waits, nor what a token budget is spent on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.core.sequence import Sequence
from headrace.scheduler.cost_model import StepCosts
from headrace.scheduler.pace import PACE
from headrace.scheduler.policy import UNBOUNDED

MIN_PREFILL_TOKENS: Final = 32
"""Prompt tokens that a step takes however late its streams are: something must always move."""

MIN_PREFILL_SHARE: Final = 0.1
"""Most of a pace that those may cost, or late streams would stay late where tokens are dear; one always moves."""

CATCH_UP_STEPS: Final = 4
"""In how many steps a stream that fell behind a little should be back on pace."""

MAX_STEP_S: Final = 0.25
"""Longest step while anybody has targets: whoever arrives during a step waits for its end."""

FEASIBLE_TPOT: Final = 1.25
"""A TPOT target below so many times a step of one stream alone cannot be met here and does not hold others up."""

MAX_LAG: Final = 0.5
"""Share of a TPOT that a stream may be behind before prompts have to stand back."""


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """What runs: ``streams`` with one pending token each, over ``context`` tokens in all, and ``chunks`` with more.

    ``tpot_s`` is the tightest target among the streams, ``credit_s`` the least time until a stream's next token
    is due, ``lag`` how far the worst one is behind in units of its own target. Without targets the former two
    are infinite.
    """

    streams: list[Sequence]
    chunks: list[Sequence]
    context: int
    tpot_s: float
    credit_s: float
    lag: float

    @property
    def is_behind(self) -> bool:
        return self.lag > MAX_LAG


def batch_load(running: Iterable[Sequence], now: float, min_tpot_s: float) -> BatchLoad:
    """Sum up what runs; targets below ``min_tpot_s`` count as that. Costs O(running), a fraction of a us each."""
    streams: list[Sequence] = []
    chunks: list[Sequence] = []
    context = 0
    tightest = credit_s = math.inf
    lag = 0.0
    for seq in running:
        num_tokens = len(seq.token_ids)
        if num_tokens - seq.num_computed_tokens != 1:
            chunks.append(seq)
            continue
        streams.append(seq)
        context += num_tokens
        tpot_s = seq.request.service_level.tpot_s
        num_output = num_tokens - seq.num_prompt_tokens
        if tpot_s < math.inf and num_output > 0:
            tpot_s = max(tpot_s, min_tpot_s)
            tightest = min(tightest, tpot_s)
            credit = seq.first_token_time + PACE * tpot_s * num_output - now
            credit_s = min(credit_s, credit)
            if credit < -lag * tpot_s:
                lag = -credit / tpot_s
    return BatchLoad(streams, chunks, context, tightest, credit_s, lag)


class StepBudget:
    """Prompt tokens that fit into a step, and what that makes in the long run.

    ``max_num_tokens`` bounds a step, whatever its targets; a TPOT below ``min_tpot_s`` counts as that.
    """

    def __init__(self, costs: StepCosts, load: BatchLoad, max_num_tokens: int, min_tpot_s: float) -> None:
        self._costs = costs
        self._min_tpot_s = min_tpot_s
        self._load = load
        self._num_streams = len(load.streams)
        self._most = max(max_num_tokens - self._num_streams, 0)
        self._base_s = costs.decodes_s(self._num_streams, load.context)
        self._least = MIN_PREFILL_TOKENS if load.tpot_s == math.inf else self._num_at_least(load.tpot_s)

    def num_prefill_tokens(self, step_s: float, context: int) -> int:
        """Prompt tokens, the first of them after ``context`` others, that a step of ``step_s`` seconds has room for."""
        if step_s == math.inf:
            return self._most
        count = self._costs.num_affordable_tokens(step_s - self._base_s, self._num_streams, context)
        return min(max(count, self._least), self._most)

    def step_s(self, has_targets: bool) -> float:
        """How long the step may take: a pace's worth, as long as the least credit lasts, or less to catch up."""
        if not has_targets:
            return math.inf
        if self._load.tpot_s == math.inf:
            return MAX_STEP_S
        credit_s = min(self._load.credit_s, MAX_STEP_S)
        pace_s = PACE * self._load.tpot_s
        return max(pace_s, credit_s) if credit_s >= 0 else max(pace_s + credit_s / CATCH_UP_STEPS, 0.0)

    def _num_at_least(self, tpot_s: float) -> int:
        count = self._costs.num_affordable_tokens(MIN_PREFILL_SHARE * PACE * tpot_s, self._num_streams, 0)
        return min(max(count, 1), MIN_PREFILL_TOKENS)

    def steady_rate(self) -> float:
        """Prompt tokens per second while the same streams run on, each step a pace long."""
        step_s = MAX_STEP_S if self._load.tpot_s == math.inf else PACE * self._load.tpot_s
        count = self.num_prefill_tokens(step_s, 0)
        return count / (self._base_s + self._costs.chunk_s(self._num_streams, count, 0))

    def max_starts(self, tpot_s: float) -> int:
        """How many more streams leave a step of streams alone shorter than the tightest pace, theirs included."""
        load, costs = self._load, self._costs
        tpot_s = min([tpot_s, load.tpot_s, *(seq.request.service_level.tpot_s for seq in load.chunks)])
        if tpot_s == math.inf:
            return UNBOUNDED
        stream_s = costs.decode_s + costs.context_s * load.context / max(self._num_streams, 1)
        if self._num_streams >= costs.num_free_tokens:
            stream_s += costs.token_s
        spare_s = PACE * max(tpot_s, self._min_tpot_s) - self._base_s
        num_started = self._num_streams + len(load.chunks)
        return max(int(spare_s / max(stream_s, 1e-9)) - len(load.chunks), 0 if num_started else 1)
