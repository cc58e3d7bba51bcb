"""The curve of a capacity search as a table and as a page."""

from __future__ import annotations

from headrace.bench.capacity import CapacityReport, Probe
from headrace.bench.charts import Axis, Series, line_chart
from headrace.core.html_page import facts, heading, page, paragraph, table, title_heading

_HEAD = ("rate", "goodput", "kept", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tok/s", "failed")


def render_text(report: CapacityReport) -> str:
    """A line for each rate, then the knee."""
    lines = [f"Goodput of {report.server.name} by offered rate; objectives {objectives(report)}", ""]
    lines.append("".join(f"{cell:>10}" for cell in _HEAD))
    lines += ["".join(f"{cell:>10}" for cell in _row(probe)) + _note(probe, report) for probe in report.probes]
    return "\n".join([*lines, "", verdict(report)])


def render_page(report: CapacityReport) -> str:
    """The same with pictures."""
    probes = report.probes
    body = [title_heading(f"Capacity of {report.server.name}"), paragraph(verdict(report))]
    body += [
        '<div class="charts">',
        line_chart(
            "Goodput against the offered rate",
            [
                Series("goodput", [(probe.rate, probe.goodput) for probe in probes], is_marked=True),
                Series("offered", [(probe.rate, probe.rate) for probe in probes]),
            ],
            Axis("offered requests/s"),
            Axis("requests/s"),
            "Where the curve leaves the line, requests begin to miss their objectives.",
        ),
        line_chart(
            "Requests that keep their objectives",
            [Series("all", [(probe.rate, 100 * probe.attainment) for probe in probes], is_marked=True), *_each(report)],
            Axis("offered requests/s"),
            Axis("% of offered", limit=100.0),
        ),
        line_chart(
            "Latency at the 99th percentile",
            [
                Series("TTFT", [(probe.rate, 1e3 * probe.ttft_p99_s) for probe in probes], is_marked=True),
                Series("TPOT", [(probe.rate, 1e3 * probe.tpot_p99_s) for probe in probes], is_marked=True),
            ],
            Axis("offered requests/s"),
            Axis("ms"),
        ),
        "</div>",
        heading("Rates"),
        table([_HEAD, *(_row(probe) for probe in probes)]),
        heading("Setup"),
        facts(
            [
                ("objectives", objectives(report)),
                ("model", report.server.model),
                ("workload", f"{report.workload.name}, seed {report.workload.seed}, new prompts for every rate"),
                ("machine", f"{report.machine.cpu}, {report.machine.num_cores:g} cores"),
                ("measured", f"{report.date} by headrace {report.headrace_version}"),
            ]
        ),
    ]
    return page(f"Capacity of {report.server.name}", body)


def objectives(report: CapacityReport) -> str:
    slos = report.probes[0].slos if report.probes else []
    return ", ".join(f"{slo.metric} <= {slo.limit_ms:g} ms" for slo in slos)


def verdict(report: CapacityReport) -> str:
    """The knee in one sentence."""
    share = f"{100 * report.attainment:g} % of requests"
    knee = report.knee
    if knee is None:
        return f"no knee: even at {report.probes[0].rate:.3g} requests/s fewer than {share} keep the objectives"
    if report.is_beyond_limit:
        return f"no knee up to {knee.rate:.3g} requests/s: {share} still keep the objectives; raise --max-rate"
    return (
        f"knee at {knee.rate:.3g} requests/s (to {100 * report.tolerance:g} %): the highest rate at which {share} keep "
        f"the objectives; goodput there {knee.goodput:.3g} requests/s"
    )


def _each(report: CapacityReport) -> list[Series]:
    slos = report.probes[0].slos
    if len(slos) < 2:
        return []
    return [
        Series(slo.metric, [(probe.rate, 100 * probe.slos[index].attainment) for probe in report.probes])
        for index, slo in enumerate(slos)
    ]


def _row(probe: Probe) -> list[str]:
    return [
        f"{probe.rate:.3g}",
        f"{probe.goodput:.3g}",
        f"{100 * probe.attainment:.1f} %",
        *(f"{1e3 * value:.1f}" for value in (probe.ttft_p50_s, probe.ttft_p99_s, probe.tpot_p50_s, probe.tpot_p99_s)),
        f"{probe.output_rate:.1f}",
        f"{probe.num_failed}",
    ]


def _note(probe: Probe, report: CapacityReport) -> str:
    notes = ["<- knee"] if probe.rate == report.knee_rate else []
    if probe.is_distorted:
        notes.append(f"client {1e3 * probe.lag_p99_s:.0f} ms late")
    return "  " + ", ".join(notes) if notes else ""
