"""The policies that can be simulated: those that serve, and vLLM's for comparison with logs of that engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, get_args

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.sequence import Sequence as TokenSequence
from headrace.scheduler.build import BatchLimits, PolicyName, build_scheduler
from headrace.scheduler.cost_model import StepCostModel
from headrace.scheduler.meters import SchedulingMeters
from headrace.scheduler.policy import FcfsPolicy, SchedulerListener, StepShape
from headrace.scheduler.scheduler import Scheduler

SimulatedPolicy = PolicyName | Literal["vllm"]

POLICY_NAMES: Final[tuple[SimulatedPolicy, ...]] = (*get_args(PolicyName), "vllm")

STEPWISE_POLICIES: Final[frozenset[SimulatedPolicy]] = frozenset({"slo"})
"""Policies that learn from steps in which they have nothing to decide, so that none may be skipped."""


class VllmPolicy(FcfsPolicy):
    """First come, first served as vLLM V1 does it.

    Running requests get their tokens in the order they started, a waiting one starts as soon as its first chunk has
    blocks, and when those run out the one that started last gives way and is computed again, as Kwon et al.
    describe it ("Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023).
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        super().__init__(max_num_batched_tokens)
        self._budget = max_num_batched_tokens

    def shape_step(self, running: Collection[TokenSequence], now: float) -> StepShape:
        return StepShape(self._budget, list(running))

    def victim(self, running: Iterable[TokenSequence], now: float) -> TokenSequence:
        return list(running)[-1]

    def num_tokens_to_start(self, seq: TokenSequence, running: Collection[TokenSequence]) -> int:
        """Nothing beyond its first chunk; the scheduler's own margin comes on top."""
        return 0


def build_simulated_scheduler(
    policy: SimulatedPolicy,
    kv: KVCacheManager,
    limits: BatchLimits,
    costs: StepCostModel,
    listeners: Sequence[SchedulerListener],
) -> Scheduler:
    """The scheduler that serves under this name, or the same with vLLM's policy."""
    if policy == "vllm":
        return Scheduler(kv, VllmPolicy(limits.max_num_batched_tokens), limits, SchedulingMeters(costs), listeners)
    return build_scheduler(policy, kv, limits, costs, listeners)
