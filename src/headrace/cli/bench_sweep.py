"""``headrace bench sweep``: every combination of server and client settings, one after the other, resumable."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.bench_flags import above_zero, add_load_flags, add_server_flags, file_path
from headrace.cli.bench_serve import read_labels, read_load, read_server, write_text
from headrace.cli.bench_workload_flags import add_preset_flag, add_workload_flags, read_workload
from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.bench.peer_process import RunningPeer
    from headrace.bench.report import ServingReport
    from headrace.bench.sweep import Combination

_DESCRIPTION = """Measure every combination of settings. --serve-params are flags added to --serve-cmd, --bench-params
are flags of bench serve; each is a JSON file, or JSON itself: a list of objects, or one object of lists whose product
is meant. A server is started once for all client settings. Finished combinations are kept, and --resume goes on."""


def main(argv: Sequence[str]) -> int:
    parser = _parser(argv)
    arguments = parser.parse(argv)

    from headrace.bench.sweep import PAGE_FILE, SUMMARY_FILE, combinations, pareto_page, parse_settings, summary_csv

    if arguments.serve_params and not arguments.serve_cmd:
        raise ConfigError(
            "--serve-params are flags of a server that is started here; give its command with --serve-cmd"
        )
    serve = parse_settings(arguments.serve_params, "--serve-params") if arguments.serve_params else [{}]
    bench = parse_settings(arguments.bench_params, "--bench-params") if arguments.bench_params else [{}]
    pairs = combinations(serve, bench)
    folder: Path = arguments.output_dir
    _check_folder(folder, pairs, is_resumed=arguments.resume)
    if arguments.dry_run:
        print("\n".join(_described(arguments, pair) for pair in pairs))
        return 0
    results, failures = _Sweep(parser, argv, arguments).run(pairs)
    if results:
        write_text(folder / SUMMARY_FILE, summary_csv(results), "--output-dir")
        write_text(folder / PAGE_FILE, pareto_page(results), "--output-dir")
        print(_table(results))
        print(f"\nwrote {folder / SUMMARY_FILE} and {folder / PAGE_FILE}")
    if arguments.json:
        write_json({"results": [{"name": pair.name, "report": report} for pair, report in results]}, arguments.json)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return int(bool(failures))


def _parser(argv: Sequence[str]) -> Parser:
    parser = Parser("bench sweep", _DESCRIPTION)
    flags = parser.add_argument_group("sweep")
    flags.add_argument("--serve-cmd", metavar="COMMAND", help="start this server; {port} in it becomes a free port")
    flags.add_argument("--serve-params", metavar="JSON", help="flags of the server to combine")
    flags.add_argument("--bench-params", metavar="JSON", help="flags of bench serve to combine")
    flags.add_argument(
        "--output-dir",
        type=file_path,
        default=Path("sweep"),
        metavar="DIR",
        help="where to keep results (default: sweep)",
    )
    flags.add_argument("--resume", action="store_true", help="keep what is there and measure the rest")
    flags.add_argument("--dry-run", action="store_true", help="only say what would be measured")
    flags.add_argument(
        "--start-timeout", type=above_zero, default=300.0, metavar="S", help="for a server to be ready (default: 300)"
    )
    flags.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    flags.add_argument("--label", default="", metavar="TEXT", help="a name for this sweep")
    parser.set_defaults(metadata=[])
    add_server_flags(parser)
    add_load_flags(parser)
    add_workload_flags(parser)
    add_preset_flag(parser, argv)
    return parser


class _Sweep:
    """Runs combinations; what fails is told at the end and does not stop the others. *Mutable*: one use."""

    def __init__(self, parser: Parser, argv: Sequence[str], arguments: argparse.Namespace) -> None:
        self._parser = parser
        self._argv = argv
        self._arguments = arguments
        self._results: list[tuple[Combination, ServingReport]] = []
        self._failures: list[str] = []

    def run(self, pairs: Sequence[Combination]) -> tuple[list[tuple[Combination, ServingReport]], list[str]]:
        from headrace.bench.sweep import finished, grouped

        for serve, members in grouped(pairs):
            missing = []
            for pair in members:
                report = finished(self._arguments.output_dir, pair)
                if report is None:
                    missing.append(pair)
                else:
                    self._results.append((pair, report))
            try:
                if missing:
                    self._run_group(serve, missing)
            except HeadraceError as error:  # the server did not start with these settings
                self._failures.append(f"{missing[0].name}: {error.message}")
        return self._results, self._failures

    def _run_group(self, serve: Sequence[tuple[str, object]], members: Sequence[Combination]) -> None:
        from headrace.bench.peer_process import parse_command, running
        from headrace.bench.sweep import flag_words

        with contextlib.ExitStack() as stack:
            peer: RunningPeer | None = None
            if self._arguments.serve_cmd:
                words = flag_words(members[0].serve)
                command = parse_command(" ".join([self._arguments.serve_cmd, *map(shlex.quote, words)]))
                peer = stack.enter_context(running(command, self._arguments.start_timeout))
            for pair in members:
                try:
                    self._measure(pair, peer)
                except HeadraceError as error:
                    self._failures.append(f"{pair.name}: {error.message}")

    def _measure(self, pair: Combination, peer: RunningPeer | None) -> None:
        from headrace.bench.serving import ServingJob, run_serving
        from headrace.bench.sweep import REPORT_FILE, flag_words
        from headrace.cli.progress import terminal_progress

        given = [(key, value) for key, value in pair.bench if value is not False]  # no flag of bench has a --no-
        arguments = self._parser.parse([*self._argv, *flag_words(given)])
        server = replace(read_server(arguments), name=pair.name)
        info = None
        if peer is not None:
            server = replace(server, base_url=peer.command.url)
            info = peer.info(pair.name)
        print(f"measuring {pair.name}", file=sys.stderr)
        job = ServingJob(
            server=server,
            load=read_load(arguments),
            workload=read_workload(arguments),
            labels=read_labels(arguments),
            server_info=info,
            ready_timeout_s=arguments.ready_check_timeout_sec,
        )
        report = run_serving(job, terminal_progress())
        folder = self._arguments.output_dir / pair.name
        folder.mkdir(parents=True, exist_ok=True)
        write_json(report, str(folder / REPORT_FILE))
        self._results.append((pair, report))


def _check_folder(folder: Path, pairs: Sequence[Combination], *, is_resumed: bool) -> None:
    from headrace.bench.sweep import finished

    if not is_resumed and any(finished(folder, pair) is not None for pair in pairs):
        raise ConfigError(
            f"{folder} holds results of these settings; go on with --resume, or name another --output-dir"
        )


def _described(arguments: argparse.Namespace, pair: Combination) -> str:
    from headrace.bench.sweep import flag_words

    server = [arguments.serve_cmd, *flag_words(pair.serve)] if arguments.serve_cmd else ["(running server)"]
    return f"{pair.name}: {' '.join(server)}; bench serve {' '.join(flag_words(pair.bench))}".rstrip()


def _table(results: Sequence[tuple[Combination, ServingReport]]) -> str:
    from headrace.bench.sweep import frontier, speed_and_throughput

    points = [speed_and_throughput(report) for _, report in results]
    best = frontier(points)
    width = max(len(pair.name) for pair, _ in results)
    lines = [f"{'combination':<{width}}{'tok/s of one user':>20}{'output tok/s':>15}  frontier"]
    for index, (pair, _) in enumerate(results):
        mark = "  *" if index in best else ""
        lines.append(f"{pair.name:<{width}}{points[index][0]:>20.1f}{points[index][1]:>15.1f}{mark}")
    return "\n".join(lines)
