"""``headrace bench capacity``: flags to a search for the knee of goodput, its report to terminal and files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from headrace.cli.bench_flags import above_zero, add_load_flags, add_server_flags, add_start_flags, file_path, share
from headrace.cli.bench_serve import (
    EXIT_DISTORTED,
    read_labels,
    read_load,
    read_server,
    with_started_server,
    write_text,
)
from headrace.cli.bench_workload_flags import add_preset_flag, add_workload_flags, read_workload
from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError

_DESCRIPTION = """Find the highest request rate at which enough of the offered requests keep their objectives: the rate
is doubled until they break and then bisected. Each rate has new prompts. --num-prompts and --num-runs do not apply."""


def main(argv: Sequence[str]) -> int:
    parser = Parser("bench capacity", _DESCRIPTION)
    _add_search_flags(parser)
    add_server_flags(parser)
    add_start_flags(parser)
    add_load_flags(parser)
    add_workload_flags(parser)
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    parser.add_argument("--html", type=file_path, metavar="FILE", help="also write a page with pictures")
    parser.add_argument("--label", default="", metavar="TEXT", help="a name for this search")
    parser.set_defaults(metadata=[])
    add_preset_flag(parser, argv)
    arguments = parser.parse(argv)

    from headrace.bench.capacity import SearchOptions, run_capacity
    from headrace.bench.capacity_report import render_page, render_text
    from headrace.bench.serving import ServingJob
    from headrace.cli.progress import terminal_progress

    options = SearchOptions(
        attainment=arguments.attainment,
        min_rate=arguments.min_rate,
        max_rate=arguments.max_rate,
        tolerance=arguments.tolerance,
        probe_s=arguments.probe_time,
    )
    if options.min_rate >= options.max_rate:
        raise ConfigError(f"--min-rate {options.min_rate:g} must be below --max-rate {options.max_rate:g}")
    job = ServingJob(
        server=read_server(arguments),
        load=read_load(arguments),
        workload=read_workload(arguments),
        labels=read_labels(arguments),
        ready_timeout_s=arguments.ready_check_timeout_sec,
    )
    with contextlib.ExitStack() as stack:
        report = run_capacity(with_started_server(job, arguments, stack), options, terminal_progress())
    if arguments.html is not None:
        write_text(arguments.html, render_page(report), "--html")
    if arguments.json:
        write_json(report, arguments.json)
    if arguments.json != "-":
        print(render_text(report))
    knee = report.knee
    return EXIT_DISTORTED if knee is not None and knee.is_distorted else 0


def _add_search_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("search")
    flags.add_argument(
        "--attainment",
        type=share,
        default=0.99,
        metavar="X",
        help="share of requests that must keep them (default: 0.99)",
    )
    flags.add_argument("--min-rate", type=above_zero, default=0.25, metavar="R", help="first rate (default: 0.25)")
    flags.add_argument("--max-rate", type=above_zero, default=1024.0, metavar="R", help="last rate (default: 1024)")
    flags.add_argument(
        "--tolerance", type=above_zero, default=0.1, metavar="X", help="how exactly to find the knee (default: 0.1)"
    )
    flags.add_argument(
        "--probe-time", type=above_zero, default=20.0, metavar="S", help="seconds a rate is offered for (default: 20)"
    )
