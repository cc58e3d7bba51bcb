"""Many equal steps at once: a stretch in which every running sequence decodes and nothing else can happen.

Owns the conditions under which the next steps repeat the last one, and their effect, which is exactly that of
taking them one by one: same times to the bit, same blocks held, cached and evicted. It leaves each step in
which something happens (an arrival, an end, a shortage of blocks) to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.clock import VirtualClock
from headrace.core.sequence import Sequence
from headrace.scheduler.cost_model import StepFeatures
from headrace.sim.simulated_executor import SimulatedExecutor


def skip_decodes(
    running: Collection[Sequence], kv: KVCacheManager, executor: SimulatedExecutor, clock: VirtualClock, until: float
) -> list[float]:
    """Take as many repetitions of the last step as begin before ``until``; returns when each ended.

    The last step must have been of decodes only, nobody may be waiting, and the policy must not care about steps
    it is not asked about. Cost: O(sequences + steps + blocks), not their product.
    """
    if not _all_decode(running, executor.last_features):
        return []
    limit = min(executor.num_tokens_before_last(seq) for seq in running)
    # an eviction to a tier below is part of some step and takes time, so none is brought about here
    num_blocks = kv.num_available_blocks if kv.tiers.is_off else kv.num_free_blocks
    num_blocks_each = num_blocks // len(running) - 1  # one more than a stretch fills, as tables may be full
    limit = min(limit, num_blocks_each * kv.block_size)
    times = _step_ends(executor, clock, limit, min(until, _next_deadline(running)))
    for seq in running if times else ():
        _advance(seq, len(times), kv, executor)
    return times


def _all_decode(running: Collection[Sequence], last: StepFeatures) -> bool:
    return (
        last.num_new_tokens == 0
        and last.num_decodes == len(running)
        and all(seq.num_pending_tokens == 1 and seq.num_output_tokens > 0 for seq in running)
    )


def _step_ends(executor: SimulatedExecutor, clock: VirtualClock, limit: int, until: float) -> list[float]:
    times: list[float] = []
    while len(times) < limit and clock.now() < until:
        executor.repeat_decodes()
        times.append(clock.now())
    return times


def _advance(seq: Sequence, num_steps: int, kv: KVCacheManager, executor: SimulatedExecutor) -> None:
    has_room = kv.extend(seq, num_steps)
    assert has_room
    seq.token_ids += [executor.inner_token(seq)] * num_steps
    seq.num_computed_tokens += num_steps
    kv.commit(seq)


def _next_deadline(running: Collection[Sequence]) -> float:
    return min((seq.request.arrival_time + seq.request.service_level.deadline_s for seq in running), default=math.inf)
