"""From an engine's state to the metrics of what waits and of the tiers below the KV cache. Pure but for the metrics."""

from __future__ import annotations

from headrace.core.client import StepStats, TierUse
from headrace.engine.metric_families import MetricFamilies

_NO_TIERS = TierUse(0, 0, 0, 0, 0, 0, 0, 0)


def observe_waits(families: MetricFamilies, stats: StepStats, last: StepStats) -> None:
    """Take over who waits for what; a reason that nobody waits for any more stays, at 0."""
    for reason in last.num_waiting_by_reason.keys() - stats.num_waiting_by_reason.keys():
        families.waiting_for.labels(reason).set(0)
    for reason, count in stats.num_waiting_by_reason.items():
        families.waiting_for.labels(reason).set(count)
    for reason, seconds in stats.waited_s.items():
        families.wait_time.labels(reason).inc(max(0.0, seconds - last.waited_s.get(reason, 0.0)))


def observe_tiers(families: MetricFamilies, use: TierUse | None, last: TierUse | None) -> None:
    """Take over what the tiers hold and what was moved since ``last``; nothing without tiers."""
    if use is None:
        return
    before = _NO_TIERS if last is None else last
    families.tier_blocks.labels("host").set(use.num_host_blocks)
    families.tier_blocks.labels("disk").set(use.num_disk_blocks)
    moved = {
        "offload": use.num_offloaded - before.num_offloaded,
        "restore": use.num_restored - before.num_restored,
        "spill": use.num_spilled - before.num_spilled,
        "fetch": use.num_fetched - before.num_fetched,
    }
    for kind, count in moved.items():
        families.tier_transfers.labels(kind).inc(count)
    families.tier_losses.labels("room").inc(use.num_dropped - before.num_dropped)
    families.tier_losses.labels("damage").inc(use.num_failed - before.num_failed)
