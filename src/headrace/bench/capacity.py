"""Goodput against the offered rate, and the knee: the highest rate at which enough requests keep their objectives.

The search doubles the rate until the objectives break, then bisects between the last rate that held and the first
that did not. Goodput counts over offered requests, so that past the knee the curve falls as promises are broken,
whatever the server's throughput does (DistServe; Zhong et al., OSDI 2024).
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import uvloop

from headrace.bench.arrivals import ConstantRate
from headrace.bench.connection import Connection, connect
from headrace.bench.recorder import RunRecorder
from headrace.bench.report import Setup
from headrace.bench.serving import ServingJob, describe, run_once, warm_up
from headrace.bench.summary import RunSummary, SloResult
from headrace.bench.workload import WorkloadInfo, write_workload
from headrace.bench.workload_options import WorkloadOptions, build_workload
from headrace.core.errors import ConfigError, RequestFailed
from headrace.core.progress import Progress

REPORT_VERSION = 1
MIN_REQUESTS = 10


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``attainment`` is the share of offered requests that must keep every objective; rates in requests a second.

    The knee is found to ``tolerance``, relative. A probe offers ``probe_s`` seconds of its rate, at least ten requests.
    """

    attainment: float = 0.99
    min_rate: float = 0.25
    max_rate: float = 1024.0
    tolerance: float = 0.1
    probe_s: float = 20.0


class Probe(msgspec.Struct, frozen=True):
    """One rate and what came of it."""

    rate: float
    goodput: float
    attainment: float
    num_offered: int
    num_failed: int
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    output_rate: float
    lag_p99_s: float
    is_distorted: bool
    slos: list[SloResult] = []


class CapacityReport(Setup, frozen=True, kw_only=True):
    """The curve by rising rate, and its knee; ``knee_rate`` is ``None`` when even the lowest rate was too much.

    ``is_beyond_limit`` says that the highest rate allowed still held.
    """

    headrace_capacity: int = REPORT_VERSION
    attainment: float
    tolerance: float
    knee_rate: float | None
    is_beyond_limit: bool
    probes: list[Probe]

    @property
    def knee(self) -> Probe | None:
        return next((probe for probe in self.probes if probe.rate == self.knee_rate), None)


async def find_knee(is_held: Callable[[float], Awaitable[bool]], options: SearchOptions) -> tuple[float | None, bool]:
    """The highest rate that holds, to the tolerance, and whether even ``max_rate`` did.

    ``is_held`` measures a rate. A rate holds or not by what was measured there once: a search cannot know better.
    """
    low: float | None = None
    high = options.min_rate
    while await is_held(high):
        low = high
        if high >= options.max_rate:
            return low, True
        high = min(high * 2, options.max_rate)
    if low is None:
        return None, False
    while high / low > 1 + options.tolerance:
        middle = math.sqrt(low * high)
        if await is_held(middle):
            low = middle
        else:
            high = middle
    return low, False


def run_capacity(job: ServingJob, options: SearchOptions, progress: Progress) -> CapacityReport:
    """Search a server's knee. Raises ``ConfigError`` without objectives, ``RequestFailed`` if nothing is answered."""
    if not job.load.slos:
        raise ConfigError("capacity is what keeps objectives; name them, for example --slo ttft:500 tpot:50")
    if not isinstance(job.workload, WorkloadOptions):
        raise ConfigError("capacity makes new prompts for every rate; leave out --workload and describe them instead")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_search(job, job.workload, options, progress))


async def _search(
    job: ServingJob, workload: WorkloadOptions, options: SearchOptions, progress: Progress
) -> CapacityReport:
    async with connect(job.server, job.ready_timeout_s) as connection:
        await warm_up(connection, job.load.num_warmups)
        prober = _Prober(job, workload, connection, options, progress)
        knee, is_beyond = await find_knee(prober.is_held, options)
        setup = describe(job, connection, prober.info)
    probes = sorted(prober.probes, key=lambda probe: probe.rate)
    if all(probe.num_failed == probe.num_offered for probe in probes):
        raise RequestFailed("no request of any rate succeeded; bench serve with the same flags shows why")
    return CapacityReport(
        **msgspec.structs.asdict(setup),
        attainment=options.attainment,
        tolerance=options.tolerance,
        knee_rate=knee,
        is_beyond_limit=is_beyond,
        probes=probes,
    )


class _Prober:
    """Measures rates, each with prompts that no other rate has seen. *Mutable*: ``probes`` are those so far."""

    def __init__(
        self,
        job: ServingJob,
        workload: WorkloadOptions,
        connection: Connection,
        options: SearchOptions,
        progress: Progress,
    ) -> None:
        self.probes: list[Probe] = []
        self.info = WorkloadInfo(name=workload.dataset, seed=workload.seed, num_sessions=0, num_requests=0)
        self._job = job
        self._workload = workload
        self._connection = connection
        self._options = options
        self._progress = progress

    async def is_held(self, rate: float) -> bool:
        """Measure a rate; whether enough requests kept their objectives."""
        run = await self._measure(rate)
        self.probes.append(_probe_of(rate, run))
        return run.attainment >= self._options.attainment

    async def _measure(self, rate: float) -> RunSummary:
        number = len(self.probes)
        num_sessions = max(MIN_REQUESTS, round(rate * self._options.probe_s))
        workload = replace(self._workload, num_sessions=num_sessions, seed=self._workload.seed * 1009 + number)
        load = replace(self._job.load, rate=ConstantRate(rate), num_prompts=num_sessions)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            source = build_workload(workload, self._connection.writer())
            file = write_workload(source, Path(folder) / "workload.jsonl")
            self.info = msgspec.structs.replace(file.info, seed=self._workload.seed)
            recorder = RunRecorder(load.slos, on_record=lambda record: self._progress.advance(1))
            self._progress.start(f"{rate:.3g} requests/s", file.info.num_requests, "items")
            try:
                job = replace(self._job, load=load)
                return await run_once(job, self._connection, file.sessions(), number, recorder)
            finally:
                self._progress.finish()


def _probe_of(rate: float, run: RunSummary) -> Probe:
    return Probe(
        rate=rate,
        goodput=run.goodput,
        attainment=run.attainment,
        num_offered=run.num_offered,
        num_failed=run.num_failed,
        ttft_p50_s=run.ttft.median,
        ttft_p99_s=run.ttft.percentile(99),
        tpot_p50_s=run.tpot.median,
        tpot_p99_s=run.tpot.percentile(99),
        output_rate=run.output_rate,
        lag_p99_s=max(run.client.send_lag_p99_s, run.client.loop_lag_p99_s),
        is_distorted=run.client.is_distorting,
        slos=run.slos,
    )
