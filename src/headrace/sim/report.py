"""What a simulation says: offered, served, refused, and how well, for all and per class and tenant.

Owns the definitions. Goodput is counted over everything offered: a request that was refused, ended late or cut
short is as much a miss as one that was slow. Percentiles are those of the requests that were served.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from headrace.scheduler.fairness import jain_index
from headrace.sim.record import Outcome, RequestRecord
from headrace.sim.simulator import Simulator


class Spread(msgspec.Struct, frozen=True):
    """Mean and percentiles of one measure; not numbers when nothing was measured."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            return cls(math.nan, math.nan, math.nan, math.nan)
        p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
        return cls(math.fsum(values) / len(values), p50, p90, p99)


class GroupReport(msgspec.Struct, frozen=True):
    """One class, one tenant, or all. Times in seconds.

    ``tokens_per_s`` is a request's own rate after its first token, and its percentiles count from the fast end: 99 %
    of the requests are at least as fast as ``p99``. ``stall_s`` is a request's longest gap between two tokens.
    ``hit_rate`` is the share of prompt tokens found in the prefix cache.
    """

    name: str
    offered: int
    admitted: int
    served: int
    rejected: int
    expired: int
    too_long: int
    failed: int
    goodput: float
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    tokens_per_s: Spread
    stall_s: Spread
    num_preemptions: int
    hit_rate: float
    output_tokens: int


class SimulationReport(msgspec.Struct, frozen=True):
    """One run. ``busy`` is the share of the simulated time in which a step was running.

    ``jain_index`` is Jain's index of the tenants' shares: of what each offered, how much was served.
    """

    policy: str
    load: float
    seed: int
    simulated_s: float
    num_steps: int
    busy: float
    output_tokens_per_s: float
    jain_index: float
    total: GroupReport
    classes: list[GroupReport]
    tenants: list[GroupReport]


def report_of(simulator: Simulator, policy: str, load: float, seed: int) -> SimulationReport:
    """Judge a run that is over."""
    records = simulator.records
    total = _group("all", records)
    tenants = _groups(records, lambda record: record.offered.trace.tenant)
    simulated_s = simulator.clock.now()
    return SimulationReport(
        policy=policy,
        load=load,
        seed=seed,
        simulated_s=simulated_s,
        num_steps=simulator.num_steps,
        busy=simulator.busy_s / simulated_s if simulated_s > 0 else 0.0,
        output_tokens_per_s=total.output_tokens / simulated_s if simulated_s > 0 else 0.0,
        jain_index=jain_index([_served_share(members) for members in _by(records, _tenant).values()]),
        total=total,
        classes=_groups(records, lambda record: record.offered.service_class),
        tenants=tenants if len(tenants) > 1 else [],
    )


def meets_targets(record: RequestRecord) -> bool:
    """Whether the request was served within all its targets."""
    level = record.offered.level
    return (
        record.outcome is Outcome.SERVED
        and record.ttft_s <= level.ttft_s
        and record.tpot_s <= level.tpot_s
        and record.e2e_s <= level.deadline_s
    )


def _tenant(record: RequestRecord) -> str:
    return record.offered.trace.tenant


def _by(records: Iterable[RequestRecord], key: Callable[[RequestRecord], str]) -> dict[str, list[RequestRecord]]:
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _groups(records: Iterable[RequestRecord], key: Callable[[RequestRecord], str]) -> list[GroupReport]:
    """One report each, the largest group first."""
    groups = [_group(name, members) for name, members in _by(records, key).items()]
    return sorted(groups, key=lambda group: (-group.offered, group.name))


def _group(name: str, records: Sequence[RequestRecord]) -> GroupReport:
    counts = Counter(record.outcome for record in records)
    served = [record for record in records if record.outcome is Outcome.SERVED]
    paced = [record for record in served if record.num_output_tokens > 1]  # one token alone has no pace
    return GroupReport(
        name=name,
        offered=len(records),
        admitted=sum(record.is_admitted for record in records),
        served=len(served),
        rejected=counts[Outcome.REJECTED],
        expired=counts[Outcome.EXPIRED],
        too_long=counts[Outcome.TOO_LONG],
        failed=counts[Outcome.FAILED],
        goodput=sum(map(meets_targets, records)) / len(records),
        ttft_s=Spread.of([record.ttft_s for record in served]),
        tpot_s=Spread.of([record.tpot_s for record in paced]),
        e2e_s=Spread.of([record.e2e_s for record in served]),
        tokens_per_s=_rates([record.tpot_s for record in paced]),
        stall_s=Spread.of([record.longest_gap_s for record in paced]),
        num_preemptions=sum(record.num_preemptions for record in records),
        hit_rate=_hit_rate(served),
        output_tokens=sum(record.num_output_tokens for record in records),
    )


def _hit_rate(served: Sequence[RequestRecord]) -> float:
    num_input = sum(record.offered.trace.num_input_tokens for record in served)
    return sum(record.num_cached_tokens for record in served) / num_input if num_input else 0.0


def _rates(tpots_s: Sequence[float]) -> Spread:
    times = Spread.of(tpots_s)
    mean = math.fsum(1.0 / tpot_s for tpot_s in tpots_s) / len(tpots_s) if tpots_s else math.nan
    return Spread(mean, 1.0 / times.p50, 1.0 / times.p90, 1.0 / times.p99)


def _served_share(records: Sequence[RequestRecord]) -> float:
    """Of the tokens that one tenant offered, prompts and answers, the share that was served."""
    offered = sum(record.offered.trace.num_input_tokens + record.offered.trace.num_output_tokens for record in records)
    served = sum(
        record.offered.trace.num_input_tokens + record.num_output_tokens
        for record in records
        if record.outcome is Outcome.SERVED
    )
    return served / offered
