"""Simulations as text for a terminal: for each run what became of its requests and how long they took."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.sim.report import GroupReport, SimulationReport

MAX_TENANTS_SHOWN = 10

_COUNTS = ("", "offered", "admitted", "rejected", "late", "goodput", "preempted", "hits", "TPS p50", "p99")
_TIMES = ("", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99", "stall p50", "p90", "p99")

Row = tuple[str, ...]


def render(report: SimulationReport) -> str:
    """One run: a line of its own facts, then what became of the requests, then how long they took."""
    groups = [*report.classes, *([report.total] if len(report.classes) > 1 else [])]
    groups += report.tenants[:MAX_TENANTS_SHOWN]
    lines = [
        f"policy {report.policy}, load {report.load:g}: {report.simulated_s:.0f} s simulated in {report.num_steps} "
        f"steps, busy {report.busy:.0%}, {report.output_tokens_per_s:.0f} output tokens/s, "
        f"Jain {report.jain_index:.3f} (seed {report.seed})",
        *_aligned([_COUNTS, *map(_counts, groups)]),
        *_aligned([_TIMES, *map(_times, groups)]),
    ]
    num_hidden = len(report.tenants) - MAX_TENANTS_SHOWN
    if num_hidden > 0:
        lines.append(f"{num_hidden} smaller tenants are not shown; --json FILE has them all")
    if report.total.too_long:
        lines.append(f"{report.total.too_long} requests are longer than --max-model-len and count as missed")
    return "\n".join(lines)


def _counts(group: GroupReport) -> Row:
    return (
        group.name or "(no tenant)",
        str(group.offered),
        str(group.admitted),
        str(group.rejected),
        str(group.expired + group.failed),
        f"{group.goodput:.1%}",
        str(group.num_preemptions),
        f"{group.hit_rate:.0%}",
        _number(group.tokens_per_s.p50),
        _number(group.tokens_per_s.p99),
    )


def _times(group: GroupReport) -> Row:
    spreads = (group.ttft_s, group.tpot_s, group.stall_s)
    values = [value for spread in spreads for value in (spread.p50, spread.p90, spread.p99)]
    return (group.name or "(no tenant)", *map(_seconds, values))


def _seconds(value: float) -> str:
    """``0.0314`` as ``31 ms``, ``2.5`` as ``2.50 s``."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f} s" if value >= 1.0 else f"{value * 1e3:.3g} ms"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
