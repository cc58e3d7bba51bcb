"""``headrace bench serve``: flags to a ``ServingJob``, its report to terminal and files."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.cli.bench_flags import (
    add_load_flags,
    add_server_flags,
    add_start_flags,
    file_path,
    read_base_url,
    read_endpoint,
    read_extra_body,
    read_headers,
    read_pairs,
)
from headrace.cli.bench_workload_flags import add_preset_flag, add_workload_flags, read_workload
from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.arrivals import ConstantRate, RampedRate
    from headrace.bench.connection import ServerOptions
    from headrace.bench.report import ServingReport
    from headrace.bench.serving import Labels, LoadOptions, ServingJob

EXIT_DISTORTED = 3

_DESCRIPTION = """Load a server that speaks OpenAI's API (or SGLang's /generate) and report latency, throughput and
goodput. Latency counts from the intended send time; nothing is retried; the client's own lag is measured, and the exit
code is 3 if it distorts the figures."""


def main(argv: Sequence[str]) -> int:
    parser = Parser("bench serve", _DESCRIPTION)
    add_server_flags(parser)
    add_start_flags(parser)
    add_load_flags(parser)
    add_workload_flags(parser)
    add_result_flags(parser)
    add_preset_flag(parser, argv)
    arguments = parser.parse(argv)
    job = read_job(arguments)

    from headrace.bench.serving import run_serving
    from headrace.cli.progress import terminal_progress

    with contextlib.ExitStack() as stack:
        report = run_serving(with_started_server(job, arguments, stack), terminal_progress())
    write_results(report, arguments)
    return finish(report, arguments)


def with_started_server(job: ServingJob, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> ServingJob:
    """The same job against a server that ``--start`` names, which runs until ``stack`` is closed."""
    if arguments.start is None:
        return job
    if arguments.base_url is not None or arguments.host is not None or arguments.port is not None:
        raise ConfigError("--start says where the server will be; leave out --base-url, --host and --port")
    from headrace.bench.peer_process import parse_command, running

    peer = stack.enter_context(running(parse_command(arguments.start), arguments.start_timeout))
    return replace(
        job,
        server=replace(job.server, base_url=peer.command.url, name=peer.command.name),
        server_info=peer.info(peer.command.name),
    )


def add_result_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("result")
    flags.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    flags.add_argument("--html", type=file_path, metavar="FILE", help="also write a page with pictures")
    flags.add_argument(
        "--result-dir",
        type=file_path,
        metavar="DIR",
        help="write everything there: report.json, report.html, requests.jsonl, workload.jsonl, and the result as "
        "vllm.json, sglang.json and trtllm.json",
    )
    flags.add_argument("--request-log", type=file_path, metavar="FILE", help="one JSON line for each request")
    flags.add_argument("--save-detailed", action="store_true", help="have those lines hold the answers' text")
    flags.add_argument("--save-result", action="store_true", help="write vLLM's result file, in the current folder")
    flags.add_argument(
        "--result-filename", metavar="NAME", help="what vLLM's result file is called (default: vllm.json)"
    )
    flags.add_argument("--output-file", type=file_path, metavar="FILE", help="append SGLang's result line to this file")
    flags.add_argument(
        "--metric-percentiles", metavar="P,P", help="of vLLM's; all are always written, others are refused"
    )
    flags.add_argument("--percentile-metrics", metavar="NAME,NAME", help="of vLLM's; all are always written")
    flags.add_argument("--disable-tqdm", action="store_true", help=argparse.SUPPRESS)
    flags.add_argument("--label", "--tag", default="", metavar="TEXT", help="a name for this run")
    flags.add_argument("--metadata", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="to remember")


def read_job(arguments: argparse.Namespace) -> ServingJob:
    """Everything the flags say. Raises ``ConfigError``."""
    from headrace.bench.serving import ServingJob

    _check_percentiles(arguments.metric_percentiles or "")
    folder: Path | None = arguments.result_dir
    if folder is not None:
        _make_folder(folder)
    workload = read_workload(arguments)
    save = arguments.save_workload or (folder / "workload.jsonl" if folder is not None else None)
    return ServingJob(
        server=read_server(arguments),
        load=read_load(arguments),
        workload=workload,
        labels=read_labels(arguments),
        save_workload=None if isinstance(workload, Path) else save,
        request_lines=arguments.request_log or (folder / "requests.jsonl" if folder is not None else None),
        keeps_texts=arguments.save_detailed,
        ready_timeout_s=arguments.ready_check_timeout_sec,
    )


def read_server(arguments: argparse.Namespace) -> ServerOptions:
    from headrace.bench.connection import ServerOptions

    names = ("temperature", "top_p", "top_k")
    sampling = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.verify:
        if sampling.get("temperature"):
            raise ConfigError(
                f"--verify compares greedy answers, but --temperature is {sampling['temperature']}; leave one out"
            )
        sampling["temperature"] = 0.0
    return ServerOptions(
        base_url=read_base_url(arguments),
        endpoint=read_endpoint(arguments),
        model=arguments.model,
        headers=read_headers(arguments),
        request_timeout_s=arguments.request_timeout,
        is_streamed=not arguments.disable_stream,
        ignore_eos=arguments.ignore_eos,
        sampling=sampling,
        extra_body=read_extra_body(arguments.extra_body),
        tokenizer=arguments.tokenizer,
        prompt_format=arguments.prompt_format,
    )


def read_load(arguments: argparse.Namespace) -> LoadOptions:
    from headrace.bench.serving import LoadOptions
    from headrace.bench.slo import parse_slos

    lag_ms = arguments.max_client_lag
    return LoadOptions(
        rate=_rate(arguments),
        burstiness=arguments.burstiness,
        max_concurrency=arguments.max_concurrency,
        trace_slowdown=arguments.trace_slowdown if arguments.use_trace_timestamps else None,
        num_prompts=arguments.num_prompts,
        num_runs=arguments.num_runs,
        num_warmups=arguments.num_warmups,
        max_duration_s=arguments.duration,
        seed=arguments.seed,
        slos=parse_slos(arguments.slo),
        lag_limit_s=None if lag_ms is None else lag_ms / 1e3,
        num_verified=arguments.verify,
    )


def read_labels(arguments: argparse.Namespace) -> Labels:
    from headrace.bench.serving import Labels
    from headrace.cli.bench_machine import this_machine
    from headrace.cli.version import installed_version

    return Labels(
        version=installed_version("headrace") or "unknown",
        machine=this_machine(),
        label=arguments.label,
        metadata=read_pairs(arguments.metadata, "--metadata"),
    )


def write_results(report: ServingReport, arguments: argparse.Namespace) -> None:
    """Every file that was asked for. Raises ``ConfigError`` for one that cannot be written."""
    from headrace.bench.report_html import render_page
    from headrace.bench.result_dialects import RESULT_DIALECTS, sglang_result, vllm_result

    vllm_name = arguments.result_filename or "vllm.json"
    if arguments.save_result and arguments.result_dir is None:
        write_json(vllm_result(report), vllm_name)
    if arguments.output_file is not None:
        _append_line(arguments.output_file, sglang_result(report))
    if arguments.html is not None:
        write_text(arguments.html, render_page([report]), "--html")
    if arguments.json:
        write_json(report, arguments.json)
    if (folder := arguments.result_dir) is not None:
        write_json(report, str(folder / "report.json"))
        write_text(folder / "report.html", render_page([report]), "--result-dir")
        for name, result in RESULT_DIALECTS.items():
            write_json(result(report), str(folder / (vllm_name if name == "vllm" else f"{name}.json")))


def finish(report: ServingReport, arguments: argparse.Namespace) -> int:
    """Print the table and what to know before believing it; the exit code."""
    from headrace.bench.report_table import render_table, warnings

    if arguments.json != "-":
        print(render_table(report))
    for warning in warnings(report):
        print(f"warning: {warning}", file=sys.stderr)
    if report.num_ok == 0:
        print("error: no request succeeded", file=sys.stderr)
        return 1
    return EXIT_DISTORTED if report.is_distorted else 0


def _append_line(path: Path, result: Mapping[str, object]) -> None:
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; --output-file names a file") from error


def write_text(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; {flag} says where") from error


def _rate(arguments: argparse.Namespace) -> ConstantRate | RampedRate | None:
    from headrace.bench.arrivals import ConstantRate, RampedRate, RampStrategy

    if arguments.ramp_up_strategy is None:
        return None if math.isinf(arguments.request_rate) else ConstantRate(arguments.request_rate)
    start, end = arguments.ramp_up_start_rps, arguments.ramp_up_end_rps
    if start is None or end is None:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    return RampedRate(start, end, RampStrategy(arguments.ramp_up_strategy))


def _check_percentiles(text: str) -> None:
    from headrace.bench.statistics import PERCENTILES

    for word in text.split(","):
        if word.strip() and word.strip() not in {f"{rank:g}" for rank in PERCENTILES}:
            known = ", ".join(f"{rank:g}" for rank in PERCENTILES)
            raise ConfigError(f"--metric-percentiles {word.strip()!r} is not among those that are kept: {known}")


def _make_folder(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}; --result-dir names a folder") from error
