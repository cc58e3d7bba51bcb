"""How long a server takes to be ready, from its command: cold, with nothing kept from earlier starts, and warm.

Cold means an empty cache folder of ours; the model file is there, and the system's page cache is left as it is,
since emptying it takes an administrator.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from headrace.bench.comparison import Direction, Figure
from headrace.bench.offline import OfflineResult
from headrace.bench.peer_process import PeerCommand, free_port, running
from headrace.bench.process_watch import usage_of
from headrace.bench.report import Machine
from headrace.bench.statistics import percentile
from headrace.checkpoint.reference import resolve_model
from headrace.core.progress import Progress

_RANKS = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class StartupJob:
    """``flags`` are further words for ``headrace serve``; ``timeout_s`` is for one start."""

    model: str
    flags: tuple[str, ...]
    num_cold: int
    num_warm: int
    timeout_s: float
    version: str
    machine: Machine


@dataclass(frozen=True, slots=True)
class _Start:
    """Seconds to ready, and the memory of a server that has done nothing yet."""

    ready_s: float
    peak_rss_bytes: int


def run_startup(job: StartupJob, progress: Progress) -> OfflineResult:
    """Start and stop a server again and again. Raises ``ConfigError``, ``RequestFailed``."""
    path = resolve_model(job.model, progress)
    progress.start("starts", job.num_cold + job.num_warm, "items")
    cold, warm = [], []
    try:
        for _ in range(job.num_cold):
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                cold.append(_start(job, path, Path(folder)))
            progress.advance(1)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            if job.num_warm:
                _start(job, path, Path(folder))  # what later starts find is written here
            for _ in range(job.num_warm):
                warm.append(_start(job, path, Path(folder)))
                progress.advance(1)
    finally:
        progress.finish()
    return _result(job, cold, warm)


def _start(job: StartupJob, path: Path, cache_folder: Path) -> _Start:
    port = free_port()
    words = (sys.executable, "-m", "headrace.cli.main", "serve", str(path), "--port", str(port), *job.flags)
    command = PeerCommand("headrace", words, port, {"HEADRACE_CACHE_DIR": str(cache_folder)})
    with running(command, job.timeout_s) as peer:
        usage = usage_of(peer.pid)
        return _Start(peer.start_s, usage.peak_rss_bytes if usage is not None else 0)


def _result(job: StartupJob, cold: Sequence[_Start], warm: Sequence[_Start]) -> OfflineResult:
    figures: dict[str, Figure] = {}
    fields: dict[str, object] = {}
    for name, starts in (("cold", cold), ("warm", warm)):
        if not starts:
            continue
        times = [start.ready_s for start in starts]
        figures[f"{name} start"] = Figure(times, "s", Direction.LOWER)
        figures[f"{name} peak memory"] = Figure(
            [start.peak_rss_bytes / 2**20 for start in starts], "MiB", Direction.LOWER
        )
        fields[f"avg_{name}_startup_time"] = float(np.mean(times))
        fields[f"{name}_startup_times"] = times
        fields[f"{name}_startup_percentiles"] = {str(rank): percentile(times, rank) for rank in _RANKS}
    return OfflineResult(
        name=f"startup of {job.model}",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        headrace_version=job.version,
        machine=job.machine,
        model=job.model,
        options={"flags": list(job.flags), "num_cold": job.num_cold, "num_warm": job.num_warm},
        figures=figures,
        fields=fields,
    )
