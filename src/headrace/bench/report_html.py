"""A serving report as one HTML page: pictures first, then every figure in a table, then what the words mean."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.charts import Axis, Series, bar_chart, line_chart
from headrace.bench.comparison import DEFAULT_THRESHOLD
from headrace.bench.comparison_table import reading_note, server_rows
from headrace.bench.report import ServingReport
from headrace.bench.report_table import figure_rows, group_rows, latency_rows, turn_rows, warnings
from headrace.bench.statistics import PERCENTILES, Spread
from headrace.bench.summary import GAP_EDGES_S, RunSummary
from headrace.core.html_page import facts, heading, page, paragraph, table, title_heading

DEFINITIONS = (
    ("TTFT", "from the moment a request should have been sent to its first chunk with text"),
    ("ITL", "gap between two chunks with text of one answer; a chunk may hold several tokens"),
    ("TPOT", "from the first to the last chunk, by the tokens after the first, as the server counts tokens"),
    ("E2E", "from the moment a request should have been sent to the end of its answer"),
    ("Worst gap", "the longest silence within one answer, of each request"),
    ("Goodput", "requests a second that met every objective; attainment is their share of all that were offered"),
    ("Interval", "95 %, Student's t over the runs"),
)


def render_page(reports: Sequence[ServingReport], threshold: float = DEFAULT_THRESHOLD) -> str:
    """One server's report, or several side by side: a picture has a line for each, and a table a column.

    ``threshold`` is the change that counts as one.
    """
    title = "Serving benchmark" if len(reports) == 1 else "Serving benchmark, compared"
    body = [title_heading(title), _head(reports)]
    for report in reports:
        body += [f'<p class="warning">{_escaped(report, text, reports)}</p>' for text in warnings(report)]
    if len(reports) > 1:
        body += [heading("Side by side"), table(server_rows(reports, threshold))]
        body.append(paragraph(reading_note(reports, threshold)))
    body += ['<div class="charts">', *_charts(reports), "</div>"]
    for report in reports:
        name = f" of {report.server.name}" if len(reports) > 1 else ""
        body += [heading(f"Figures{name}"), facts(figure_rows(report))]
        body += [heading(f"Latencies{name} (ms)"), table(latency_rows(report))]
        run = report.runs[0]
        if run.turns:
            body += [heading(f"Turns{name} (first run, ms)"), table(turn_rows(run))]
        if run.groups:
            body += [heading(f"Groups of clients{name} (first run, ms)"), table(group_rows(run))]
    body += [heading("What the words mean"), facts(DEFINITIONS)]
    return page(title, body)


def latency_charts(reports: Sequence[ServingReport]) -> list[str]:
    """Distributions of latency, of the first run."""
    runs = [(report.server.name, report.runs[0]) for report in reports]
    if len(runs) == 1:
        run = runs[0][1]
        lines = [_cdf("TTFT", run.ttft), _cdf("worst gap", run.worst_gap), _cdf("E2E", run.e2e)]
        return [
            _cdf_chart("Latencies", lines),
            _cdf_chart("Time per token", [_cdf("TPOT", run.tpot), _cdf("ITL", run.itl)]),
        ]
    return [
        _cdf_chart("TTFT", [_cdf(name, run.ttft) for name, run in runs]),
        _cdf_chart("TPOT", [_cdf(name, run.tpot) for name, run in runs]),
        _cdf_chart("E2E latency", [_cdf(name, run.e2e) for name, run in runs]),
    ]


def _charts(reports: Sequence[ServingReport]) -> list[str]:
    runs = [(report.server.name, report.runs[0]) for report in reports]
    charts = latency_charts(reports)
    charts.append(
        line_chart(
            "Requests in flight",
            [Series(name, _steps(run, run.timeline.in_flight)) for name, run in runs],
            Axis("seconds"),
            Axis("requests"),
            "The most at once, of the first run.",
        )
    )
    charts.append(
        line_chart(
            "Output tokens",
            [Series(name, _steps(run, run.timeline.tokens_per_s)) for name, run in runs],
            Axis("seconds"),
            Axis("tokens/s"),
            "In quarters of a second (longer for long runs), of the first run.",
        )
    )
    charts += [_stalls(name, run, len(runs)) for name, run in runs]
    return charts


def _stalls(name: str, run: RunSummary, num_reports: int) -> str:
    labels = [f"{edge * 1e3:.0f}" if edge < 0.0995 else f"{edge:.2g}s" for edge in GAP_EDGES_S[:-1]]
    filled = [index for index, count in enumerate(run.gap_counts) if count]
    first, last = (max(filled[0] - 1, 0), filled[-1] + 2) if filled else (0, 0)
    bars = list(zip(labels, map(float, run.gap_counts), strict=True))[first:last]
    caption = "Gaps between chunks" + (f", {name}" if num_reports > 1 else "")
    note = "How many gaps were at least so long; the right-hand bars are stalls. The scale of counts is logarithmic."
    return bar_chart(caption, bars, Axis("gaps", is_log=True), "ms, or seconds where it says s", note)


def _cdf_chart(caption: str, series: Sequence[Series]) -> str:
    note = "The share of requests (or gaps) that were at most so slow."
    return line_chart(caption, series, Axis("ms", is_log=True), Axis("share", limit=1.0), note)


def _cdf(name: str, spread: Spread) -> Series:
    if not spread.count:
        return Series(name, [])
    ranks = [(spread.minimum, 0.0), *((spread.percentile(rank), rank / 100) for rank in PERCENTILES)]
    points = [(max(1e3 * value, 1e-3), share) for value, share in [*ranks, (spread.maximum, 1.0)]]
    return Series(name, points)


def _steps(run: RunSummary, values: Sequence[float]) -> list[tuple[float, float]]:
    width = run.timeline.bucket_s
    return [(at * width, float(value)) for index, value in enumerate(values) for at in (index, index + 1)]


def _head(reports: Sequence[ServingReport]) -> str:
    first = reports[0]
    machine = first.machine
    rows = [
        ("servers", ", ".join(f"{report.server.name} {report.server.version}".strip() for report in reports)),
        ("model", ", ".join(sorted({report.server.model for report in reports}))),
        (
            "workload",
            f"{first.workload.name}, seed {first.workload.seed}, {first.workload.num_requests} requests in all",
        ),
        ("load", describe_load(first)),
        ("machine", f"{machine.cpu}, {machine.num_cores:g} cores, load average {machine.load_average:.1f} before"),
        (
            "measured",
            f"{first.date} by headrace {first.headrace_version}" + (f", {first.label}" if first.label else ""),
        ),
    ]
    return facts(rows)


def describe_load(report: ServingReport) -> str:
    """How requests were sent, in a few words."""
    load = report.load
    if load.kind == "closed":
        return f"closed loop of {load.max_concurrency}"
    if load.trace_slowdown is not None:
        words = f"open loop at the trace's times, {load.trace_slowdown:g} times slower"
    elif load.ramp_up_strategy is not None:
        words = (
            f"open loop, {load.ramp_up_strategy} from {load.ramp_up_start_rps:g} to {load.ramp_up_end_rps:g} requests/s"
        )
    elif load.request_rate is not None:
        words = f"open loop, {load.request_rate:g} requests/s, burstiness {load.burstiness:g}"
    else:
        words = "all at once"
    return words + (f", at most {load.max_concurrency} at once" if load.max_concurrency else "")


def _escaped(report: ServingReport, text: str, reports: Sequence[ServingReport]) -> str:
    return paragraph(f"{report.server.name}: {text}" if len(reports) > 1 else text)[3:-4]
