"""One run in figures: the internal record that every report and dialect is written from.

``summarize`` is pure arithmetic on a recorder's rows. Latencies and throughput are of requests that ended well;
goodput and attainment are over all requests that were offered, so that failing is never a way to look fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.bench.client_lag import judge_lag
from headrace.bench.load_generator import RunTimes
from headrace.bench.record import FAILURES, Outcome
from headrace.bench.recorder import RequestRow, RunRecorder
from headrace.bench.slo import Slo
from headrace.bench.statistics import Spread, jain_index, spread
from headrace.bench.timeline import TimelineSummary

MAX_GROUPS_SHOWN = 64
GAP_EDGES_S = tuple(0.001 * 2 ** (step / 2) for step in range(34))
"""Edges of the gap histogram: half octaves from 1 ms to 92 s; what is outside is in the first and last bin."""


class SloResult(msgspec.Struct, frozen=True):
    """One limit in milliseconds and the share of offered requests that kept it."""

    metric: str
    limit_ms: float
    attainment: float


class GroupResult(msgspec.Struct, frozen=True):
    """What one group of clients got: its requests, output tokens a second, and median and 99th of TTFT in seconds."""

    group: str
    num_requests: int
    num_ok: int
    output_tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float


class TurnResult(msgspec.Struct, frozen=True):
    """One turn of conversations: TTFT in seconds, and how much of its prompts was cached."""

    turn: int
    num_requests: int
    ttft: Spread
    mean_input_tokens: float
    cached_share: float


class ServerCost(msgspec.Struct, frozen=True):
    """What the server's processes took meanwhile; peak memory is since their start."""

    rss_bytes: int
    peak_rss_bytes: int
    cpu_s: float
    num_processes: int


class ClientHealth(msgspec.Struct, frozen=True):
    """The client's own lateness (99th percentile, seconds) and CPU use in cores; distorting means: do not trust."""

    send_lag_p99_s: float
    loop_lag_p99_s: float
    lag_limit_s: float
    is_distorting: bool
    cores: float
    remedy: str = ""


class VerifyResult(msgspec.Struct, frozen=True):
    """How many greedy answers under load were asked again alone, how many were equal, and the first that was not."""

    num_checked: int
    num_equal: int
    first_difference: str = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Times in seconds, rates per second of ``duration_s``."""

    duration_s: float
    num_offered: int
    num_ok: int
    num_failed: int
    num_aborted: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_chunks: int
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    worst_gap: Spread
    queue: Spread
    concurrency: float
    timeline: TimelineSummary
    gap_counts: list[int]
    slos: list[SloResult]
    num_good: int
    groups: list[GroupResult]
    fairness: float | None
    turns: list[TurnResult]
    client: ClientHealth
    itl_is_exact: bool = True
    server: ServerCost | None = None
    verify: VerifyResult | None = None

    @property
    def request_rate(self) -> float:
        return self._per_second(self.num_ok)

    @property
    def output_rate(self) -> float:
        """Output tokens per second, of requests that ended well."""
        return self._per_second(self.num_output_tokens)

    @property
    def input_rate(self) -> float:
        return self._per_second(self.num_input_tokens)

    @property
    def total_rate(self) -> float:
        return self.input_rate + self.output_rate

    @property
    def goodput(self) -> float:
        """Requests per second that met every objective."""
        return self._per_second(self.num_good)

    @property
    def attainment(self) -> float:
        """The share of offered requests that met every objective; those the workload aborts do not count."""
        judged = self.num_offered - self.num_aborted
        return self.num_good / judged if judged else 0.0

    @property
    def cpu_s_per_output_token(self) -> float | None:
        if self.server is None or not self.num_output_tokens:
            return None
        return self.server.cpu_s / self.num_output_tokens

    @property
    def cached_share(self) -> float:
        return self.num_cached_tokens / self.num_input_tokens if self.num_input_tokens else 0.0

    def _per_second(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0


def summarize(
    recorder: RunRecorder, times: RunTimes, slos: Sequence[Slo], lag_limit_s: float | None = None
) -> RunSummary:
    """The figures of a finished run; ``lag_limit_s`` is what the client may be late."""
    rows = recorder.rows
    good = [row for row in rows if row.is_ok]
    outcomes = {outcome.value: sum(row.outcome == outcome.value for row in rows) for outcome in Outcome}
    ttft, gaps = spread([row.ttft_s for row in good]), recorder.gaps.spread()
    return RunSummary(
        duration_s=times.duration_s,
        num_offered=len(rows),
        num_ok=len(good),
        num_failed=sum(outcomes[outcome.value] for outcome in FAILURES),
        num_aborted=outcomes[Outcome.ABORTED.value],
        outcomes={name: count for name, count in outcomes.items() if count},
        errors=recorder.errors,
        num_input_tokens=sum(row.num_input_tokens for row in good),
        num_output_tokens=sum(row.num_output_tokens for row in good),
        num_cached_tokens=sum(row.num_cached_tokens for row in good),
        num_chunks=sum(row.num_chunks for row in good),
        ttft=ttft,
        tpot=_spread_of(row.tpot_s for row in good),
        itl=gaps,
        e2e=spread([row.e2e_s for row in good]),
        worst_gap=_spread_of(row.worst_gap_s for row in good),
        queue=spread([row.queue_s for row in rows]),
        concurrency=sum(row.end_s - row.sent_s for row in good) / times.duration_s if times.duration_s else 0.0,
        timeline=recorder.timeline.summary(),
        gap_counts=recorder.gaps.histogram((0.0, *GAP_EDGES_S[1:-1], 1e9)),
        slos=slo_results(recorder, slos),
        num_good=sum(row.meets_slos for row in rows),
        groups=_groups(rows, times.duration_s),
        fairness=_fairness(rows),
        turns=_turns(good),
        client=_health(rows, times, (ttft, gaps), lag_limit_s),
        itl_is_exact=recorder.gaps.is_exact,
    )


def slo_results(recorder: RunRecorder, slos: Sequence[Slo]) -> list[SloResult]:
    judged = sum(row.outcome != Outcome.ABORTED.value for row in recorder.rows)
    return [
        SloResult(slo.metric.value, slo.limit_s * 1e3, recorder.num_met[slo] / judged if judged else 0.0)
        for slo in slos
    ]


def _spread_of(values: Iterable[float | None]) -> Spread:
    return spread([value for value in values if value is not None])


def _groups(rows: Sequence[RequestRow], duration_s: float) -> list[GroupResult]:
    """Groups by number of requests, where there is more than one."""
    by_group: dict[str, list[RequestRow]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    if len(by_group) < 2:
        return []
    largest = sorted(by_group.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_group(name, members, duration_s) for name, members in largest[:MAX_GROUPS_SHOWN]]


def _group(name: str, rows: Sequence[RequestRow], duration_s: float) -> GroupResult:
    good = [row for row in rows if row.is_ok]
    ttft = spread([row.ttft_s for row in good])
    tokens = sum(row.num_output_tokens for row in good)
    return GroupResult(
        group=name,
        num_requests=len(rows),
        num_ok=len(good),
        output_tokens_per_s=tokens / duration_s if duration_s else 0.0,
        ttft_p50_s=ttft.median,
        ttft_p99_s=ttft.percentile(99),
        e2e_p50_s=spread([row.e2e_s for row in good]).median,
    )


def _fairness(rows: Sequence[RequestRow]) -> float | None:
    """Jain's index over groups of the rate a request was served at: output tokens by its seconds.

    Rates per request, not sums, so that a group which asks for more is not thereby favoured. A group none of whose
    requests succeeded has a rate of 0.
    """
    rates: dict[str, list[float]] = {}
    for row in rows:
        rate = row.num_output_tokens / row.e2e_s if row.is_ok and row.e2e_s > 0 else 0.0
        rates.setdefault(row.group, []).append(rate)
    if len(rates) < 2:
        return None
    return jain_index([sum(values) / len(values) for values in rates.values()])


def _turns(good: Sequence[RequestRow]) -> list[TurnResult]:
    by_turn: dict[int, list[RequestRow]] = {}
    for row in good:
        by_turn.setdefault(row.turn, []).append(row)
    if len(by_turn) < 2:
        return []
    return [_turn(turn, by_turn[turn]) for turn in sorted(by_turn)]


def _turn(turn: int, rows: Sequence[RequestRow]) -> TurnResult:
    inputs = sum(row.num_input_tokens for row in rows)
    cached = sum(row.num_cached_tokens for row in rows)
    return TurnResult(
        turn=turn,
        num_requests=len(rows),
        ttft=spread([row.ttft_s for row in rows]),
        mean_input_tokens=inputs / len(rows),
        cached_share=cached / inputs if inputs else 0.0,
    )


def _health(
    rows: Sequence[RequestRow], times: RunTimes, latencies: Sequence[Spread], lag_limit_s: float | None
) -> ClientHealth:
    lag = judge_lag([row.lag_s for row in rows], times.loop_lags_s, latencies, lag_limit_s)
    return ClientHealth(
        send_lag_p99_s=lag.send_p99_s,
        loop_lag_p99_s=lag.loop_p99_s,
        lag_limit_s=lag.limits_s[1],
        is_distorting=lag.is_distorting,
        cores=times.client_cpu_s / times.duration_s if times.duration_s else 0.0,
        remedy=lag.remedy() if lag.is_distorting else "",
    )
