"""The state of an engine after a step, gathered from its parts."""

from __future__ import annotations

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.client import StepStats
from headrace.engine.constraints import Constraints
from headrace.scheduler.scheduler import Scheduler


def step_stats(
    scheduler: Scheduler, kv: KVCacheManager, last_step: tuple[int, int, float], constraints: Constraints
) -> StepStats:
    """``last_step`` are its tokens, its samples and its seconds."""
    num_without_grammar = constraints.num_waiting
    meters = scheduler.meters
    num_tokens, num_samples, elapsed_s = last_step
    return StepStats(
        num_running=len(scheduler.running),
        num_waiting=scheduler.num_waiting + num_without_grammar,
        num_blocks=kv.num_blocks,
        num_free_blocks=kv.num_free_blocks,
        num_cached_blocks=kv.num_evictable_blocks,
        num_step_tokens=num_tokens,
        num_step_samples=num_samples,
        step_s=elapsed_s,
        prefix_query_tokens=kv.stats.query_tokens,
        prefix_hit_tokens=kv.stats.hit_tokens,
        num_preemptions=scheduler.num_preemptions,
        num_evicted_blocks=kv.stats.evicted_blocks,
        jain_index=meters.counters.jain_index,
        step_cost_error=meters.costs.median_error,
        num_waiting_by_reason=meters.waits.num_waiting
        | ({"grammar": num_without_grammar} if num_without_grammar else {}),
        waited_s=dict(meters.waits.waited_s),
        grammars=constraints.use(),
        prefix_restored_tokens=kv.stats.restored_tokens,
        tiers=None if kv.tiers.is_off else kv.tiers.use(),
        num_free_seqs=meters.num_free_seqs,
    )
