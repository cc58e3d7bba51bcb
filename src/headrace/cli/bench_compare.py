"""``headrace bench compare``: two result files and a verdict, or several servers measured in turns."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.bench_flags import above_zero, add_load_flags, add_server_flags, file_path
from headrace.cli.bench_serve import EXIT_DISTORTED, read_labels, read_load, read_server, write_text
from headrace.cli.bench_workload_flags import add_preset_flag, add_workload_flags, read_workload
from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.serving import ServingJob

_DESCRIPTION = """Compare two results: A.json B.json, written with --json; exit code 1 if B is worse by more than the
threshold and more than chance. Or measure several servers with the same workload in interleaved rounds: --targets
for servers that run, --start for command lines that are started, waited for, measured and stopped."""


def main(argv: Sequence[str]) -> int:
    parser = Parser("bench compare", _DESCRIPTION, "[A.json B.json]")
    parser.add_argument("files", nargs="*", type=file_path, metavar="FILE", help="two results of headrace bench")
    parser.add_argument(
        "--threshold",
        type=above_zero,
        default=0.05,
        metavar="X",
        help="changes up to this do not count (default: 0.05)",
    )
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    _add_target_flags(parser)
    add_server_flags(parser)
    add_load_flags(parser)
    add_workload_flags(parser)
    add_preset_flag(parser, argv)
    arguments = parser.parse(argv)
    has_servers = bool(arguments.targets or arguments.start)
    if has_servers and arguments.files:
        raise ConfigError("compare either files or servers: leave out the files, or --targets and --start")
    if has_servers:
        return _compare_servers(arguments)
    if len(arguments.files) != 2:
        raise ConfigError(
            "compare takes two files, A.json B.json, or servers: --targets NAME=URL,... or --start COMMAND"
        )
    return _compare_files(arguments.files[0], arguments.files[1], arguments)


def _add_target_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("servers to measure")
    flags.add_argument(
        "--targets", action="append", default=[], metavar="NAME=URL,...", help="servers that run already"
    )
    flags.add_argument(
        "--start",
        action="append",
        default=[],
        metavar="COMMAND",
        help="start a server, as [NAME=]PROGRAM ARGUMENTS; {port} in it becomes a free port",
    )
    flags.add_argument(
        "--start-timeout", type=above_zero, default=300.0, metavar="S", help="for it to be ready (default: 300)"
    )
    flags.add_argument("--html", type=file_path, metavar="FILE", help="also write a page with pictures")
    flags.add_argument("--label", default="", metavar="TEXT", help="a name for this comparison")
    parser.set_defaults(metadata=[])


def _compare_files(a: Path, b: Path, arguments: argparse.Namespace) -> int:
    from headrace.bench.comparison import compare
    from headrace.bench.comparison_table import render_comparison
    from headrace.bench.figures import read_figures

    (a_name, a_figures), (b_name, b_figures) = read_figures(a), read_figures(b)
    comparison = compare((f"{a.name}, {a_name}", f"{b.name}, {b_name}"), a_figures, b_figures, arguments.threshold)
    if not comparison.ratios:
        raise ConfigError(f"{a} and {b} have no figure in common; compare results of the same kind")
    if arguments.json:
        write_json({"comparison": comparison, "verdict": comparison.verdict}, arguments.json)
    if arguments.json != "-":
        print(render_comparison(comparison))
    return int(comparison.is_worse)


def _compare_servers(arguments: argparse.Namespace) -> int:
    from headrace.bench.comparison_table import comparisons_with_first, render_servers
    from headrace.bench.interleaved import run_interleaved
    from headrace.bench.report_html import render_page
    from headrace.bench.report_table import warnings
    from headrace.cli.progress import terminal_progress

    with contextlib.ExitStack() as stack:
        reports = run_interleaved(_jobs(arguments, stack), terminal_progress())
    if arguments.html is not None:
        write_text(arguments.html, render_page(reports, arguments.threshold), "--html")
    if arguments.json:
        comparisons = comparisons_with_first(reports, arguments.threshold)
        write_json({"reports": reports, "comparisons": comparisons}, arguments.json)
    if arguments.json != "-":
        print(render_servers(reports, arguments.threshold))
    for report in reports:
        for warning in warnings(report):
            print(f"warning: {report.server.name}: {warning}", file=sys.stderr)
    if any(report.num_ok == 0 for report in reports):
        return 1
    return EXIT_DISTORTED if any(report.is_distorted for report in reports) else 0


def _jobs(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> list[ServingJob]:
    """A job for each server; those with a command are started here and stopped by ``stack``."""
    from headrace.bench.peer_process import parse_command, running
    from headrace.bench.serving import ServingJob

    server = read_server(arguments)
    base = ServingJob(
        server=server,
        load=read_load(arguments),
        workload=read_workload(arguments),
        labels=read_labels(arguments),
        ready_timeout_s=arguments.ready_check_timeout_sec,
    )
    commands = [parse_command(text) for text in arguments.start]
    pairs = [_target(word) for words in arguments.targets for word in words.split(",")]
    names = [name for name, _ in pairs] + [command.name for command in commands]
    if len(names) < 2:
        raise ConfigError("one server is no comparison; name another with --targets or --start, or use bench serve")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two servers are called {name!r}; name them, as in --start 'other={name} ...'")
    jobs = [replace(base, server=replace(server, base_url=url, name=name)) for name, url in pairs]
    for command in commands:
        peer = stack.enter_context(running(command, arguments.start_timeout))
        started = replace(server, base_url=command.url, name=command.name)
        jobs.append(replace(base, server=started, server_info=peer.info(command.name)))
    return jobs


def _target(word: str) -> tuple[str, str]:
    name, equals, url = word.partition("=")
    return (name, url) if equals else (word, word)
