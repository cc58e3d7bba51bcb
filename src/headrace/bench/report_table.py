"""A serving report as text for a terminal: vLLM's lines first, then what the others do not measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace.bench.report import ServingReport
from headrace.bench.statistics import Estimate, Spread
from headrace.bench.summary import RunSummary
from headrace.core.units import format_bytes

WIDTH = 64
MAX_GROUPS_SHOWN = 16
_LABEL = 44

Row = tuple[str, str]
_SPREADS: tuple[tuple[str, Callable[[RunSummary], Spread]], ...] = (
    ("TTFT", lambda run: run.ttft),
    ("TPOT (excl. 1st token)", lambda run: run.tpot),
    ("ITL (gap between chunks)", lambda run: run.itl),
    ("Worst gap of a request", lambda run: run.worst_gap),
    ("E2E latency", lambda run: run.e2e),
)


def render_table(report: ServingReport) -> str:
    """The whole report; with several runs, means and their 95 % intervals."""
    lines = [_title("Serving Benchmark Result"), *_lines(_head(report)), *_lines(_throughput(report))]
    lines += [_title("Latency from the intended send time (ms)"), *_latencies(report)]
    if report.runs[0].slos:
        lines += [_title("Service level objectives"), *_lines(_slos(report))]
    if report.runs[0].turns:
        lines += [_title("Turns (first run)"), *aligned(turn_rows(report.runs[0]))]
    if report.runs[0].groups:
        lines += [_title("Groups of clients (first run)"), *aligned(group_rows(report.runs[0]))]
    lines += [_title("Costs and checks"), *_lines(_costs(report)), "=" * WIDTH]
    return "\n".join(lines)


def figure_rows(report: ServingReport) -> list[Row]:
    """Every figure but the latencies, as names and values."""
    slos = _slos(report) if report.runs[0].slos else ()
    return [*_head(report), *_throughput(report), *slos, *_costs(report)]


def latency_rows(report: ServingReport) -> list[list[str]]:
    """Latencies in milliseconds; the first row is the head."""
    rows = [["", "mean", "p50", "p90", "p99", "max"]]
    for label, spread_of in _SPREADS:
        gets = (_mean, *map(_rank, (50, 90, 99)), _maximum)
        rows.append([label, *(_shown(report.over_runs(_in_ms(spread_of, get)), 1) for get in gets)])
    return rows


def _head(report: ServingReport) -> Iterator[Row]:
    load, workload = report.load, report.workload
    yield ("Server", report.server.name)
    yield ("Model", report.server.model)
    yield ("Workload", f"{workload.name}, seed {workload.seed}")
    if load.request_rate is not None:
        yield ("Request rate configured (RPS)", f"{load.request_rate:g}")
    if load.ramp_up_strategy is not None:
        yield ("Ramp (RPS)", f"{load.ramp_up_start_rps:g} to {load.ramp_up_end_rps:g}, {load.ramp_up_strategy}")
    if load.max_concurrency is not None:
        yield ("Maximum request concurrency", f"{load.max_concurrency}")
    if len(report.runs) > 1:
        yield ("Runs", f"{len(report.runs)}; means with 95 % intervals")


def _throughput(report: ServingReport) -> Iterator[Row]:
    yield _figure(report, "Successful requests", lambda run: run.num_ok, 0)
    yield _figure(report, "Failed requests", lambda run: run.num_failed, 0)
    if any(run.num_aborted for run in report.runs):
        yield _figure(report, "Requests the workload aborted", lambda run: run.num_aborted, 0)
    yield _figure(report, "Benchmark duration (s)", lambda run: run.duration_s)
    yield _figure(report, "Total input tokens", lambda run: run.num_input_tokens, 0)
    yield _figure(report, "Total generated tokens", lambda run: run.num_output_tokens, 0)
    yield _figure(report, "Request throughput (req/s)", lambda run: run.request_rate)
    yield _figure(report, "Output token throughput (tok/s)", lambda run: run.output_rate)
    yield _figure(report, "Total token throughput (tok/s)", lambda run: run.total_rate)
    yield _figure(report, "Peak output token throughput (tok/s)", lambda run: run.timeline.peak_tokens_per_s)
    yield _figure(report, "Peak concurrent requests", lambda run: run.timeline.peak_in_flight, 0)
    yield _figure(report, "Concurrency (mean)", lambda run: run.concurrency)


def _latencies(report: ServingReport) -> Iterator[str]:
    widths = (9, 9, 9, 10)
    yield f"{'':<26}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>10}"
    for label, spread_of in _SPREADS:
        if not any(spread_of(run).count for run in report.runs):
            continue
        cells = [report.over_runs(_in_ms(spread_of, get)) for get in (_mean, *map(_rank, (50, 90, 99)))]
        yield f"{label:<26}" + "".join(f"{c.mean:>{w}.1f}" for c, w in zip(cells, widths, strict=True))
        if cells[0].half_width is not None:
            yield f"{'  +-':<26}" + "".join(
                f"{c.half_width or 0.0:>{w}.1f}" for c, w in zip(cells, widths, strict=True)
            )


def _slos(report: ServingReport) -> Iterator[Row]:
    for index, slo in enumerate(report.runs[0].slos):
        share = report.over_runs(lambda run, index=index: 100 * run.slos[index].attainment)  # type: ignore[misc]
        yield (f"{slo.metric} <= {slo.limit_ms:g} ms (% of offered)", _shown(share, 1))
    yield _figure(report, "All objectives (% of offered)", lambda run: 100 * run.attainment, 1)
    yield _figure(report, "Request goodput (req/s)", lambda run: run.goodput)


def turn_rows(run: RunSummary) -> list[list[str]]:
    """A line for each turn of conversations, latencies in milliseconds; the first row is the head."""
    rows = [["turn", "requests", "TTFT p50", "TTFT p99", "input tokens", "cached"]]
    for turn in run.turns:
        p50, p99 = f"{1e3 * turn.ttft.median:.1f}", f"{1e3 * turn.ttft.percentile(99):.1f}"
        tokens, cached = f"{turn.mean_input_tokens:.0f}", f"{100 * turn.cached_share:.0f} %"
        rows.append([f"{turn.turn + 1}", f"{turn.num_requests}", p50, p99, tokens, cached])
    return rows


def group_rows(run: RunSummary) -> list[list[str]]:
    """A line for each of the largest groups of clients; the first row is the head."""
    rows = [["group", "requests", "ok", "TTFT p50", "TTFT p99"]]
    for group in run.groups[:MAX_GROUPS_SHOWN]:
        name = (group.group or "(none)")[:24]
        p50, p99 = f"{1e3 * group.ttft_p50_s:.1f}", f"{1e3 * group.ttft_p99_s:.1f}"
        rows.append([name, f"{group.num_requests}", f"{group.num_ok}", p50, p99])
    return rows


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: names on the left, everything else to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    return lines


def _costs(report: ServingReport) -> Iterator[Row]:
    run = report.runs[-1]
    if run.fairness is not None:
        yield _figure(report, "Fairness between groups (Jain)", lambda run: run.fairness or 0.0, 3)
    if run.num_cached_tokens:
        yield _figure(report, "Input tokens from the prefix cache (%)", lambda run: 100 * run.cached_share, 1)
    if run.server is not None:
        memory = f"{format_bytes(run.server.rss_bytes)}, peak {format_bytes(run.server.peak_rss_bytes)}"
        yield ("Server memory (RSS)", memory)
        yield _figure(report, "Server CPU ms per output token", lambda run: 1e3 * (run.cpu_s_per_output_token or 0.0))
    if report.server.start_s is not None:
        yield ("Server start to ready (s)", f"{report.server.start_s:.2f}")
    if report.server.install_bytes is not None:
        yield ("Server install size", format_bytes(report.server.install_bytes))
    if run.verify is not None:
        equal = sum(run.verify.num_equal for run in report.runs if run.verify)
        checked = sum(run.verify.num_checked for run in report.runs if run.verify)
        yield ("Greedy answers equal to those alone", f"{equal} of {checked}")
    yield ("Client CPU (cores)", f"{run.client.cores:.2f}")
    lag = f"{1e3 * run.client.send_lag_p99_s:.1f} send, {1e3 * run.client.loop_lag_p99_s:.1f} loop"
    yield ("Client lag p99 (ms)", lag)


def warnings(report: ServingReport) -> list[str]:
    """What a reader must know before believing the figures, one line each."""
    found = [run.client.remedy for run in report.runs if run.client.remedy][:1]
    errors: dict[str, int] = {}
    for run in report.runs:
        for text, count in run.errors.items():
            errors[text] = errors.get(text, 0) + count
    found += [f"{count} requests failed: {text}" for text, count in errors.items()]
    found += [
        f"verify: {run.verify.first_difference}" for run in report.runs if run.verify and run.verify.first_difference
    ]
    if report.workload.lengths == "words":
        found.append(
            "prompt lengths are counted in words, about one token each: the server has no /tokenize; "
            "name the model's tokenizer with --tokenizer for exact ones"
        )
    return found


def _figure(report: ServingReport, label: str, of: Callable[[RunSummary], float], digits: int = 2) -> Row:
    return label, _shown(report.over_runs(of), digits)


def _shown(estimate: Estimate, digits: int) -> str:
    if estimate.half_width is None:
        return f"{estimate.mean:.{digits}f}"
    if estimate.half_width == 0 and digits == 0:
        return f"{estimate.mean:.0f}"
    return f"{estimate.mean:.{max(digits, 1)}f} +- {estimate.half_width:.{max(digits, 1)}f}"


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    return (_line(label, value) for label, value in rows)


def _line(label: str, value: str) -> str:
    return f"{label + ':':<{_LABEL}}{value:>{WIDTH - _LABEL}}"


def _title(text: str) -> str:
    return f"{f' {text} ':=^{WIDTH}}"


def _mean(spread: Spread) -> float:
    return spread.mean


def _rank(rank: float) -> Callable[[Spread], float]:
    return lambda spread: spread.percentile(rank)


def _maximum(spread: Spread) -> float:
    return spread.maximum


def _in_ms(spread_of: Callable[[RunSummary], Spread], get: Callable[[Spread], float]) -> Callable[[RunSummary], float]:
    return lambda run: 1e3 * get(spread_of(run))
