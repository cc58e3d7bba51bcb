"""A report: who was measured how, and the runs; one value that every rendering and dialect is made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.bench.statistics import Estimate, estimate
from headrace.bench.summary import RunSummary
from headrace.bench.workload import WorkloadInfo
from headrace.core.errors import ConfigError

REPORT_VERSION = 1


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the client ran; ``load_average`` is of the minute before the first run."""

    cpu: str
    num_cores: float
    memory_bytes: int
    load_average: float
    python: str


class LoadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How requests were sent. ``request_rate`` is ``None`` for as fast as possible, or by a trace's times."""

    kind: str
    request_rate: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None
    trace_slowdown: float | None = None
    num_warmups: int = 0
    request_timeout_s: float = 0.0
    max_duration_s: float | None = None


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who was measured. What is unknown is ``None``: a server elsewhere has no start time or size for us."""

    name: str
    url: str
    model: str
    version: str = ""
    command: str = ""
    start_s: float | None = None
    install_bytes: int | None = None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Who was measured, with what, how, where and when: what every report of a server begins with."""

    headrace_version: str
    date: str
    label: str = ""
    metadata: dict[str, str] = {}
    server: ServerInfo
    endpoint: str
    workload: WorkloadInfo
    load: LoadInfo
    machine: Machine


class ServingReport(Setup, frozen=True, kw_only=True):
    """The internal record of ``bench serve``: all its figures are here, and everything else is written from it."""

    headrace_report: int = REPORT_VERSION
    runs: list[RunSummary]

    @classmethod
    def of(cls, setup: Setup, runs: list[RunSummary]) -> ServingReport:
        return cls(**msgspec.structs.asdict(setup), runs=runs)

    def over_runs(self, figure: Callable[[RunSummary], float]) -> Estimate:
        """The mean of a figure over the repeats, with its interval."""
        return estimate([figure(run) for run in self.runs])

    @property
    def is_distorted(self) -> bool:
        """Whether the client's own lag spoiled a run."""
        return any(run.client.is_distorting for run in self.runs)

    @property
    def num_ok(self) -> int:
        return sum(run.num_ok for run in self.runs)


def read_report(path: Path) -> ServingReport:
    """A report from its file. Raises ``ConfigError`` for a file that is none."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=ServingReport)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give a file written with --json") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} is not a report of headrace bench: {error}; give a file written with --json"
        ) from error
    if report.headrace_report != REPORT_VERSION:
        raise ConfigError(f"{path} is a report of format {report.headrace_report}; this version reads {REPORT_VERSION}")
    return report
