"""The long runs of hostile input: files, sources of grammars, connections.

Each prints one table and fails if anything in it is not as it should be. A failing seed fails again alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from headrace.core.errors import InvalidRequest
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.worker_process import CompileCrash, CompileTimeout, WorkerProcess
from tests.grammar.vocabulary import TABLE
from tests.hostile import files
from tests.hostile.http_fuzz import FuzzReport, fuzz
from tests.hostile.openapi import check_description
from tests.hostile.sources import source
from tests.server.served_process import ServedProcess, served
from tests.tiny_model import write_tiny_model
from tests.torture.figures import print_report
from tests.torture.processes import num_files, num_threads, private_bytes

Table = dict[str, object]
"""What was found, by name; ``failures`` is a list that must be empty."""

_BATCH = 2_000
_EXAMPLES_PER_HUNDRED = 1
_POOL_THREADS = (os.cpu_count() or 1) + 4
"""Most threads of the pool that asyncio hands work to; it grows when most is to be done at the same time."""
_SLOW_CLIENT = ("--header-read-s", "1", "--body-read-s", "1", "--max-connections", "512")


def run_files(first: int, count: int) -> Table:
    started = time.monotonic()
    report = files.run(first, count)
    return {
        "mutants": report.num_mutants,
        "read": report.num_read,
        "refused": report.num_refused,
        "longest, s": round(report.longest_s, 3),
        "memory beyond the start, MB": round(report.peak_bytes / 1e6, 1),
        "took, s": round(time.monotonic() - started),
        "failures": report.failures,
    }


def run_sources(first: int, count: int) -> Table:
    """Have the guarded worker compile them; a crash or time-out costs the worker and is counted."""
    started, ends, longest_s = time.monotonic(), Counter[str](), 0.0
    with contextlib.closing(WorkerProcess(TABLE, GrammarLimits())) as worker:
        for seed in range(first, first + count):
            begun = time.monotonic()
            try:
                worker.compile(source(seed))
                ends["compiled"] += 1
            except CompileTimeout:
                ends["out of time"] += 1
            except CompileCrash:
                ends["worker died"] += 1
            except InvalidRequest:
                ends["refused"] += 1
            longest_s = max(longest_s, time.monotonic() - begun)
    took_s = round(time.monotonic() - started)
    return {"sources": count, **ends, "longest, s": round(longest_s, 2), "took, s": took_s, "failures": []}


def run_http(first: int, count: int) -> Table:
    """Raw connections, then cases of schemathesis, against a real server of a tiny model."""
    started, found = time.monotonic(), FuzzReport()
    with tempfile.TemporaryDirectory() as folder, served(write_tiny_model(Path(folder)), *_SLOW_CLIENT) as server:
        engine = server.engine_pid()
        described = check_description(server.root, max(1, count * _EXAMPLES_PER_HUNDRED // 10_000), seed=first)
        half = first + count // 2
        _connect(server, range(first, half), found)  # whatever is made once, pools of threads too, is made by now
        before = _held(server)
        _connect(server, range(half, first + count), found)
        failures = [*found.failures, *described.failures]
        with httpx.Client(base_url=server.root, timeout=60) as http:
            if http.get("/health").status_code != 200:
                failures.append("the server is not healthy afterwards")
        if server.engine_pid() != engine:
            failures.append("the engine has died")
        after = _held(server)
        if after[0] > before[0] + _POOL_THREADS or after[1] > before[1]:
            failures.append("there are more threads or files than half-way")
    statuses = found.statuses + described.statuses
    return {
        "connections": found.num_connections,
        "described cases": sum(described.statuses.values()),
        **{f"status {status}": number for status, number in sorted(statuses.items())},
        "more threads than half-way": after[0] - before[0],
        "more files than half-way": after[1] - before[1],
        "more private memory than half-way, MB": round((after[2] - before[2]) / 1e6, 1),
        "took, s": round(time.monotonic() - started),
        "failures": failures,
    }


def _connect(server: ServedProcess, seeds: range, found: FuzzReport) -> None:
    """Send connections, some at a time."""
    port = int(server.root.rpartition(":")[2])
    for start in range(seeds.start, seeds.stop, _BATCH):
        report = asyncio.run(fuzz("127.0.0.1", port, start, min(_BATCH, seeds.stop - start)))
        found.num_connections += report.num_connections
        found.statuses += report.statuses
        found.failures += report.failures


def _held(server: ServedProcess) -> tuple[int, int, int]:
    """Threads, files and private memory of both processes, once the last connections are gone."""
    time.sleep(2)
    engine = server.engine_pid()
    pids = [server.process.pid, *([] if engine is None else [engine])]
    return sum(map(num_threads, pids)), sum(map(num_files, pids)), sum(map(private_bytes, pids))


RUNS: dict[str, tuple[Callable[[int, int], Table], int]] = {
    "files": (run_files, 50_000),
    "sources": (run_sources, 20_000),
    "http": (run_http, 200_000),
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture hostile", description=__doc__)
    parser.add_argument("kind", choices=RUNS)
    parser.add_argument("--count", type=int, default=0, help="0 for the usual number")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    run, usual = RUNS[arguments.kind]
    table = run(arguments.first, arguments.count or usual)
    failures = table.pop("failures")
    assert isinstance(failures, list)
    print("\n".join(failures[:20]))
    return print_report({**table, "failures": len(failures)}, arguments.json, is_good=not failures)
