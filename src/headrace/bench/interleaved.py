"""The same workload against several servers, in turns, so that what the machine does meanwhile hits all alike.

In each round every server gets the round's sessions once; the order is reversed from round to round. While one is
measured the others are up and idle.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import uvloop

from headrace.bench.connection import Connection, connect
from headrace.bench.record import RequestRecord
from headrace.bench.recorder import RunRecorder
from headrace.bench.report import ServingReport
from headrace.bench.serving import ServingJob, describe, part_of, prepared_workload, run_once, sessions_a_run, warm_up
from headrace.bench.summary import RunSummary
from headrace.bench.workload import WorkloadFile
from headrace.core.progress import Progress


def run_interleaved(jobs: Sequence[ServingJob], progress: Progress) -> list[ServingReport]:
    """A report for each job, in order. All have the first one's workload and load. Raises as ``run_serving`` does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(jobs, progress))


async def _measure(jobs: Sequence[ServingJob], progress: Progress) -> list[ServingReport]:
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect(job.server, job.ready_timeout_s)) for job in jobs]
        workload = stack.enter_context(prepared_workload(jobs[0], connections[0]))
        shared = [replace(job, load=jobs[0].load) for job in jobs]
        for job, connection in zip(shared, connections, strict=True):
            await warm_up(connection, job.load.num_warmups)
        runs = await _rounds(shared, connections, workload, progress)
        return [
            ServingReport.of(describe(job, connection, workload.info), found)
            for job, connection, found in zip(shared, connections, runs, strict=True)
        ]


async def _rounds(
    jobs: Sequence[ServingJob], connections: Sequence[Connection], workload: WorkloadFile, progress: Progress
) -> list[list[RunSummary]]:
    load = jobs[0].load
    num_each = sessions_a_run(load, workload)
    num_requests = round(workload.info.num_requests * num_each / workload.info.num_sessions)
    runs: list[list[RunSummary]] = [[] for _ in jobs]

    def hear(record: RequestRecord) -> None:
        progress.advance(1)

    for number in range(load.num_runs):
        order = range(len(jobs)) if number % 2 == 0 else reversed(range(len(jobs)))
        for index in order:
            name = jobs[index].server.name
            progress.start(f"round {number + 1} of {load.num_runs}, {name}", num_requests, "items")
            try:
                sessions = part_of(workload, number, num_each)
                recorder = RunRecorder(load.slos, on_record=hear)
                runs[index].append(await run_once(jobs[index], connections[index], sessions, number, recorder))
            finally:
                progress.finish()
    return runs
