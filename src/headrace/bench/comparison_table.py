"""Comparisons as text and as pages: two files with a verdict, or several servers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.bench.comparison import Comparison, Figure, Ratio, compare
from headrace.bench.figures import serving_figures
from headrace.bench.report import ServingReport
from headrace.bench.report_table import aligned
from headrace.bench.statistics import estimate
from headrace.core.units import format_bytes

_MARKS = {"better": "+", "worse": "!", "same": "", "unsure": "?"}


def render_comparison(comparison: Comparison) -> str:
    """A line for each figure, then the verdict."""
    rows = [["figure", "A", "B", "B / A", "95 % interval", ""]]
    rows += [[*cells, ratio.verdict.value] for ratio in comparison.ratios for cells in [_cells(ratio)]]
    lines = [f"A: {comparison.a}", f"B: {comparison.b}", "", *aligned(rows)]
    if any(ratio.low is None for ratio in comparison.ratios):
        lines += ["", "measured once: there are no intervals; --num-runs 3 and more give them"]
    return "\n".join([*lines, "", f"verdict: {comparison.verdict}"])


def comparisons_with_first(reports: Sequence[ServingReport], threshold: float) -> list[Comparison]:
    """Every other server against the first."""
    first, *others = reports
    figures = serving_figures(first)
    return [
        compare((first.server.name, other.server.name), figures, serving_figures(other), threshold) for other in others
    ]


def server_rows(reports: Sequence[ServingReport], threshold: float) -> list[list[str]]:
    """A column for each server: means, and in brackets the ratio to the first, marked where it is beyond chance."""
    comparisons = comparisons_with_first(reports, threshold)
    rows = [["", *(report.server.name for report in reports)]]
    for name, figure in serving_figures(reports[0]).items():
        cells = [f"{estimate(figure.values).mean:.2f}"]
        for comparison, report in zip(comparisons, reports[1:], strict=True):
            cells.append(_against_first(name, comparison, report))
        rows.append([f"{name} ({figure.unit})", *cells])
    rows += _cost_rows(reports)
    return rows


def render_servers(reports: Sequence[ServingReport], threshold: float) -> str:
    """The table, and how to read it."""
    return "\n".join([*aligned(server_rows(reports, threshold)), "", reading_note(reports, threshold)])


def reading_note(reports: Sequence[ServingReport], threshold: float) -> str:
    """What the cells of ``server_rows`` mean."""
    return (
        f"means over {len(reports[0].runs)} interleaved rounds; in brackets the ratio to {reports[0].server.name}, "
        f"+ better, ! worse, ? beyond {100 * threshold:g} % but not beyond chance"
    )


def render_figures(name: str, figures: Mapping[str, Figure]) -> str:
    """One result's figures: means, with intervals where there are several values."""
    rows = [["figure", "mean", "95 % interval"]]
    for label, figure in figures.items():
        mean = estimate(figure.values)
        interval = "-" if mean.half_width is None else f"{max(mean.low, 0.0):.2f} to {mean.high:.2f}"
        rows.append([f"{label} ({figure.unit})", f"{mean.mean:.2f}", interval])
    return "\n".join([name, "", *aligned(rows)])


def _against_first(name: str, comparison: Comparison, report: ServingReport) -> str:
    figure = serving_figures(report).get(name)
    if figure is None:
        return "-"
    ratio = next((ratio for ratio in comparison.ratios if ratio.name == name), None)
    mean = f"{estimate(figure.values).mean:.2f}"
    return mean if ratio is None else f"{mean} ({ratio.ratio:.2f}{_MARKS[ratio.verdict.value]})"


def _cost_rows(reports: Sequence[ServingReport]) -> list[list[str]]:
    rows = []
    if any(report.server.start_s is not None for report in reports):
        starts = [report.server.start_s for report in reports]
        rows.append(["start to ready (s)", *("-" if start is None else f"{start:.2f}" for start in starts)])
    if any(report.server.install_bytes is not None for report in reports):
        sizes = [report.server.install_bytes for report in reports]
        rows.append(["install size", *("-" if size is None else format_bytes(size) for size in sizes)])
    if any(report.server.version for report in reports):
        rows.append(["version", *(report.server.version or "-" for report in reports)])
    return rows


def _cells(ratio: Ratio) -> list[str]:
    interval = "-" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    return [f"{ratio.name} ({ratio.unit})", f"{ratio.a:.2f}", f"{ratio.b:.2f}", f"{ratio.ratio:.3f}", interval]
