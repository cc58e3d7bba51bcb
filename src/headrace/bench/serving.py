"""``bench serve`` from options to a report: make the workload, warm up, run, repeat, check answers."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import uvloop

from headrace.bench.arrivals import Arrivals, ConstantRate, RampedRate, RandomArrivals, TraceArrivals
from headrace.bench.connection import Connection, ServerOptions, connect
from headrace.bench.load_generator import ClosedLoop, LoadGenerator, Loop, OpenLoop
from headrace.bench.pacing import WallPacer
from headrace.bench.process_watch import PeakMemory, find_listener, usage_of
from headrace.bench.prompt_text import WordWriter
from headrace.bench.record import RequestRecord
from headrace.bench.recorder import RunRecorder
from headrace.bench.report import LoadInfo, Machine, ServerInfo, ServingReport, Setup
from headrace.bench.server_probe import ask_once
from headrace.bench.slo import Slo
from headrace.bench.summary import RunSummary, ServerCost, VerifyResult, summarize
from headrace.bench.verify import AnswerCheck
from headrace.bench.workload import Session, Turn, WorkloadFile, WorkloadInfo, open_workload, write_workload
from headrace.bench.workload_options import WorkloadOptions, build_workload
from headrace.core.errors import ConfigError
from headrace.core.progress import Progress

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How the workload is sent. ``rate`` ``None`` and a concurrency is a closed loop; neither is all at once.

    ``num_prompts`` sessions a run, ``num_runs`` times, each with sessions of its own. ``lag_limit_s`` is what the
    client may be late, ``None`` for a tenth of what it measures. ``num_verified`` answers of each run are asked again.
    """

    rate: ConstantRate | RampedRate | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    trace_slowdown: float | None = None
    num_prompts: int = 100
    num_runs: int = 3
    num_warmups: int = 2
    max_duration_s: float | None = None
    seed: int = 0
    slos: tuple[Slo, ...] = ()
    lag_limit_s: float | None = None
    num_verified: int = 0

    def loop(self, run: int) -> Loop:
        """Arrivals of each run are drawn anew, from the seed."""
        if self.trace_slowdown is not None:
            return OpenLoop(TraceArrivals(self.trace_slowdown), self.max_concurrency)
        if self.rate is None and self.max_concurrency is not None:
            return ClosedLoop(self.max_concurrency)
        rate = self.rate or ConstantRate(float("inf"))
        arrivals: Arrivals = RandomArrivals(rate, self.burstiness, self.num_prompts, self.seed * 1009 + run)
        return OpenLoop(arrivals, self.max_concurrency)

    def info(self, request_timeout_s: float) -> LoadInfo:
        ramp = self.rate if isinstance(self.rate, RampedRate) else None
        return LoadInfo(
            kind="open" if isinstance(self.loop(0), OpenLoop) else "closed",
            request_rate=self.rate.rate if isinstance(self.rate, ConstantRate) else None,
            burstiness=self.burstiness,
            max_concurrency=self.max_concurrency,
            ramp_up_strategy=ramp.strategy.value if ramp else None,
            ramp_up_start_rps=ramp.start if ramp else None,
            ramp_up_end_rps=ramp.end if ramp else None,
            trace_slowdown=self.trace_slowdown,
            num_warmups=self.num_warmups,
            request_timeout_s=request_timeout_s,
            max_duration_s=self.max_duration_s,
        )


@dataclass(frozen=True, slots=True)
class Labels:
    """What a report says of its circumstances."""

    version: str
    machine: Machine
    label: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServingJob:
    """One ``bench serve``. ``workload`` is made, or a file that is replayed. Files are written where named."""

    server: ServerOptions
    load: LoadOptions
    workload: WorkloadOptions | Path
    labels: Labels
    save_workload: Path | None = None
    request_lines: Path | None = None
    keeps_texts: bool = False
    server_info: ServerInfo | None = None
    ready_timeout_s: float = 0.0


def run_serving(job: ServingJob, progress: Progress) -> ServingReport:
    """Measure a server. Raises ``ConfigError`` for what makes no sense, ``RequestFailed`` if it does not answer."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(job, progress))


async def measure(job: ServingJob, progress: Progress) -> ServingReport:
    """The same on a loop that runs already."""
    async with connect(job.server, job.ready_timeout_s) as connection:
        with prepared_workload(job, connection) as workload:
            await warm_up(connection, job.load.num_warmups)
            with _open_lines(job.request_lines) as lines:
                runs = await _run_all(job, connection, workload, lines, progress)
            return ServingReport.of(describe(job, connection, workload.info), runs)


@contextlib.contextmanager
def prepared_workload(job: ServingJob, connection: Connection) -> Iterator[WorkloadFile]:
    """The workload as a file, which is kept only if it was asked for."""
    if isinstance(job.workload, Path):
        yield open_workload(job.workload)
        return
    source = build_workload(job.workload, connection.writer())
    if job.save_workload is not None:
        yield write_workload(source, job.save_workload)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        yield write_workload(source, Path(folder) / "workload.jsonl")


async def warm_up(connection: Connection, num_requests: int) -> None:
    """Requests that are not timed, on prompts that occur nowhere else. Raises ``RequestFailed``."""
    rng = np.random.default_rng([2**31, num_requests])
    writer = connection.writer() if connection.options.endpoint != "chat" else WordWriter()
    for _ in range(num_requests):
        text = writer.write(WARM_UP_TOKENS, rng)
        await ask_once(connection.target, Session(turns=[Turn(text=text, max_tokens=WARM_UP_TOKENS)]))


async def run_once(
    job: ServingJob,
    connection: Connection,
    sessions: list[Session] | Iterator[Session],
    run: int,
    recorder: RunRecorder,
) -> RunSummary:
    """One run over some sessions, with the server's processes watched if they are on this machine."""
    generator = LoadGenerator(connection.target, recorder, WallPacer(), job.load.max_duration_s)
    pid = find_listener(connection.target.client.origin)
    before = usage_of(pid) if pid is not None else None
    memory = PeakMemory(pid) if pid is not None else None
    watching = asyncio.create_task(memory.watch()) if memory is not None else None
    try:
        times = await generator.run(sessions, job.load.loop(run))
    finally:
        if watching is not None:
            watching.cancel()
    summary = summarize(recorder, times, job.load.slos, job.load.lag_limit_s)
    after = usage_of(pid) if pid is not None else None
    if before is None or after is None or memory is None:
        return summary
    cost = ServerCost(
        rss_bytes=max(memory.peak_bytes, after.rss_bytes),
        peak_rss_bytes=after.peak_rss_bytes,
        cpu_s=after.cpu_s - before.cpu_s,
        num_processes=after.num_processes,
    )
    return msgspec.structs.replace(summary, server=cost)


async def _run_all(
    job: ServingJob, connection: Connection, workload: WorkloadFile, lines: BinaryIO | None, progress: Progress
) -> list[RunSummary]:
    num_each = sessions_a_run(job.load, workload)
    num_requests = round(workload.info.num_requests * num_each / workload.info.num_sessions)
    runs = []
    for run in range(job.load.num_runs):
        check = AnswerCheck(job.load.num_verified, num_each)

        def hear(record: RequestRecord, check: AnswerCheck = check) -> None:
            check.hear(record)
            progress.advance(1)

        recorder = RunRecorder(job.load.slos, lines, hear, job.keeps_texts)
        progress.start(f"run {run + 1} of {job.load.num_runs}", num_requests, "items")
        try:
            summary = await run_once(job, connection, part_of(workload, run, num_each), run, recorder)
        finally:
            progress.finish()
        runs.append(await _verified(summary, check, connection, part_of(workload, run, num_each)))
    return runs


def sessions_a_run(load: LoadOptions, workload: WorkloadFile) -> int:
    """Sessions of each run: no run repeats another's, or it would find the other's prompts in the cache."""
    num_each = min(load.num_prompts, workload.info.num_sessions // load.num_runs)
    if num_each < 1:
        raise ConfigError(
            f"the workload has {workload.info.num_sessions} sessions for {load.num_runs} runs; lower --num-runs"
        )
    return num_each


def part_of(workload: WorkloadFile, run: int, num_each: int) -> Iterator[Session]:
    return islice(workload.sessions(), run * num_each, (run + 1) * num_each)


async def _verified(
    summary: RunSummary, check: AnswerCheck, connection: Connection, sessions: Iterator[Session]
) -> RunSummary:
    result: VerifyResult | None = None
    for number, session in enumerate(sessions):
        if check.wants(number):
            result = await check.compare(connection.target, number, session, result or VerifyResult(0, 0))
    return msgspec.structs.replace(summary, verify=result)


def describe(job: ServingJob, connection: Connection, workload: WorkloadInfo) -> Setup:
    """What a report says of its circumstances, as of now."""
    facts = connection.facts
    info = job.server_info or ServerInfo(name=job.server.name or facts.url, url=facts.url, model=facts.model)
    return Setup(
        headrace_version=job.labels.version,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        label=job.labels.label,
        metadata=job.labels.metadata,
        server=msgspec.structs.replace(info, url=facts.url, model=facts.model, version=facts.version or info.version),
        endpoint=job.server.endpoint,
        workload=workload,
        load=job.load.info(job.server.request_timeout_s),
        machine=job.labels.machine,
    )


@contextlib.contextmanager
def _open_lines(path: Path | None) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
        return
    try:
        file = path.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; --request-log names a file") from error
    with file:
        yield file
