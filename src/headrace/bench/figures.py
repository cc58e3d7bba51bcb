"""What of a report can be compared with another: its figures by name, with their better direction.

Reads every kind of report that ``headrace bench`` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.bench.comparison import Direction, Figure
from headrace.bench.report import ServingReport
from headrace.bench.summary import RunSummary
from headrace.core.errors import ConfigError

Figures = dict[str, Figure]

_OF_RUN: tuple[tuple[str, str, Direction, Callable[[RunSummary], float]], ...] = (
    ("request throughput", "req/s", Direction.HIGHER, lambda run: run.request_rate),
    ("output throughput", "tok/s", Direction.HIGHER, lambda run: run.output_rate),
    ("total throughput", "tok/s", Direction.HIGHER, lambda run: run.total_rate),
    ("TTFT mean", "ms", Direction.LOWER, lambda run: 1e3 * run.ttft.mean),
    ("TTFT p50", "ms", Direction.LOWER, lambda run: 1e3 * run.ttft.median),
    ("TTFT p99", "ms", Direction.LOWER, lambda run: 1e3 * run.ttft.percentile(99)),
    ("TPOT mean", "ms", Direction.LOWER, lambda run: 1e3 * run.tpot.mean),
    ("TPOT p50", "ms", Direction.LOWER, lambda run: 1e3 * run.tpot.median),
    ("TPOT p99", "ms", Direction.LOWER, lambda run: 1e3 * run.tpot.percentile(99)),
    ("worst gap p50", "ms", Direction.LOWER, lambda run: 1e3 * run.worst_gap.median),
    ("E2E p50", "ms", Direction.LOWER, lambda run: 1e3 * run.e2e.median),
    ("E2E p99", "ms", Direction.LOWER, lambda run: 1e3 * run.e2e.percentile(99)),
    ("success", "%", Direction.HIGHER, lambda run: 100 * run.num_ok / max(run.num_offered - run.num_aborted, 1)),
)


class _Kind(msgspec.Struct):
    """The field that tells one kind of report from another."""

    headrace_report: int | None = None
    headrace_results: int | None = None


def serving_figures(report: ServingReport) -> Figures:
    """Of each run. Goodput is there only with objectives, server costs only where they could be seen."""
    runs = report.runs
    figures = {name: Figure([of(run) for run in runs], unit, way) for name, unit, way, of in _OF_RUN}
    if runs[0].slos:
        figures["goodput"] = Figure([run.goodput for run in runs], "req/s", Direction.HIGHER)
        figures["attainment"] = Figure([100 * run.attainment for run in runs], "%", Direction.HIGHER)
    costs = [run.server for run in runs if run.server is not None]
    if len(costs) == len(runs):
        memory = [float(cost.rss_bytes) / 2**20 for cost in costs]
        figures["server memory"] = Figure(memory, "MiB", Direction.LOWER)
        cpu = [1e3 * (run.cpu_s_per_output_token or 0.0) for run in runs]
        figures["server CPU per token"] = Figure(cpu, "ms", Direction.LOWER)
    return figures


class FigureFile(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by themselves: what in-process benchmarks and suites are kept as."""

    headrace_results: int = 1
    name: str
    date: str = ""
    load_average: float | None = None
    figures: Figures


def read_figures(path: Path) -> tuple[str, Figures]:
    """A name for people, and the figures of any report. Raises ``ConfigError``."""
    try:
        data = path.read_bytes()
        kind = msgspec.json.decode(data, type=_Kind)
        if kind.headrace_report is not None:
            report = msgspec.json.decode(data, type=ServingReport)
            return report.label or report.server.name, serving_figures(report)
        if kind.headrace_results is not None:
            results = msgspec.json.decode(data, type=FigureFile)
            return results.name, results.figures
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give files written with --json") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} is not a report of headrace bench: {error}; give files written with --json"
        ) from error
    raise ConfigError(f"{path} is JSON, but no report that can be compared; give files written by bench with --json")
