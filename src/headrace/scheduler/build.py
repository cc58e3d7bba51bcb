"""A scheduler from a policy's name: the one list of the policies there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from headrace.cache.kv_cache import KVCacheManager
from headrace.scheduler.chunks import num_matchable_tokens
from headrace.scheduler.cost_model import StepCostModel
from headrace.scheduler.guesses import GuessesLast
from headrace.scheduler.meters import SchedulingMeters
from headrace.scheduler.policy import FcfsPolicy, PriorityPolicy, SchedulerListener, SchedulingPolicy
from headrace.scheduler.preemption import SwapChoice, SwapWhenCheaper
from headrace.scheduler.scheduler import BatchLimits, Scheduler
from headrace.scheduler.slo import SloPolicy

__all__ = ["BatchLimits", "PolicyName", "build_scheduler"]

PolicyName = Literal["slo", "fcfs", "priority"]


def build_scheduler(
    policy: PolicyName,
    kv: KVCacheManager,
    limits: BatchLimits,
    costs: StepCostModel,
    listeners: Sequence[SchedulerListener] = (),
    swap_choice: SwapChoice | None = None,
) -> Scheduler:
    """A scheduler over ``kv`` that learns into ``costs``; ``listeners`` hear it after its policy.

    Unless ``swap_choice`` decides otherwise, victims are swapped out where that takes less time than computing again.
    """
    meters = SchedulingMeters(costs)
    chosen, heard = _POLICIES[policy](kv, limits, meters)
    swap_choice = SwapWhenCheaper(meters) if swap_choice is None else swap_choice
    policy_of_all = GuessesLast(chosen, limits.max_num_batched_tokens, meters)
    return Scheduler(kv, policy_of_all, limits, meters, (*heard, *listeners), swap_choice)


_Built = tuple[SchedulingPolicy, tuple[SchedulerListener, ...]]


def _fcfs(kv: KVCacheManager, limits: BatchLimits, meters: SchedulingMeters) -> _Built:
    return FcfsPolicy(limits.max_num_batched_tokens), ()


def _priority(kv: KVCacheManager, limits: BatchLimits, meters: SchedulingMeters) -> _Built:
    return PriorityPolicy(limits.max_num_batched_tokens), ()


def _slo(kv: KVCacheManager, limits: BatchLimits, meters: SchedulingMeters) -> _Built:
    policy = SloPolicy(
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        meters,
        lambda seq: kv.num_cached_tokens(seq, num_matchable_tokens(seq)),
    )
    return policy, (policy,)


_POLICIES: Final[dict[str, Callable[[KVCacheManager, BatchLimits, SchedulingMeters], _Built]]] = {
    "slo": _slo,
    "fcfs": _fcfs,
    "priority": _priority,
}
