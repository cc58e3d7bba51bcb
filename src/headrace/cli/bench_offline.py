"""``headrace bench throughput``, ``latency`` and ``startup``: the engine in this process, and starts of the server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.bench_flags import above_zero, not_negative, positive, share
from headrace.cli.flags import Parser, add_config_flags, read_config
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.offline import OfflineJob, OfflineResult

_THROUGHPUT = """Give the engine all prompts at once and measure how fast it gets through them. The engine is in this
process: no HTTP, no tokenizer. Prompts are random token ids; every answer is as long as it may be."""

_LATENCY = """Run one batch after another, from its prompts to its last token. The engine is in this process."""

_STARTUP = """Start headrace serve again and again and measure the time until it answers that it is ready: cold, with
an empty cache folder, and warm, with what an earlier start has left there."""


def throughput(argv: Sequence[str]) -> int:
    parser = Parser("bench throughput", _THROUGHPUT, "[MODEL]")
    _add_batch_flags(parser, input_len="128", output_len="64")
    parser.add_argument("--num-prompts", type=positive, default=64, metavar="N", help="at once (default: 64)")
    parser.add_argument("--num-runs", type=positive, default=3, metavar="N", help="each with new prompts (default: 3)")
    parser.add_argument("--num-warmups", type=not_negative, default=1, metavar="N", help="runs before (default: 1)")
    add_config_flags(parser, EngineConfig)
    arguments = parser.parse(argv)

    from headrace.bench.offline import run_throughput
    from headrace.cli.progress import terminal_progress

    return _show(run_throughput(_job(arguments), terminal_progress()), arguments)


def latency(argv: Sequence[str]) -> int:
    parser = Parser("bench latency", _LATENCY, "[MODEL]")
    _add_batch_flags(parser, input_len="32", output_len="128")
    parser.add_argument(
        "--batch-size", dest="num_prompts", type=positive, default=8, metavar="N", help="prompts at once (default: 8)"
    )
    parser.add_argument(
        "--num-iters", dest="num_runs", type=positive, default=10, metavar="N", help="batches to time (default: 10)"
    )
    parser.add_argument(
        "--num-iters-warmup", dest="num_warmups", type=not_negative, default=2, metavar="N", help="before (default: 2)"
    )
    add_config_flags(parser, EngineConfig)
    arguments = parser.parse(argv)

    from headrace.bench.offline import run_latency
    from headrace.cli.progress import terminal_progress

    return _show(run_latency(_job(arguments), terminal_progress()), arguments)


def startup(argv: Sequence[str]) -> int:
    own, flags = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = Parser("bench startup", _STARTUP, "[MODEL] [flags] [-- FLAGS OF SERVE]")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--num-iters-cold", type=not_negative, default=3, metavar="N", help="cold starts (default: 3)")
    parser.add_argument(
        "--num-iters-warmup",
        "--num-iters-warm",
        type=not_negative,
        default=3,
        metavar="N",
        help="warm starts (default: 3)",
    )
    parser.add_argument(
        "--start-timeout", type=above_zero, default=300.0, metavar="S", help="for one to be ready (default: 300)"
    )
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    arguments = parser.parse(own)
    if arguments.num_iters_cold + arguments.num_iters_warmup == 0:
        raise ConfigError("nothing to start: --num-iters-cold and --num-iters-warm are both 0")

    from headrace.bench.startup import StartupJob, run_startup
    from headrace.cli.bench_machine import this_machine
    from headrace.cli.progress import terminal_progress
    from headrace.cli.version import installed_version

    job = StartupJob(
        model=arguments.model,
        flags=tuple(flags),
        num_cold=arguments.num_iters_cold,
        num_warm=arguments.num_iters_warmup,
        timeout_s=arguments.start_timeout,
        version=installed_version("headrace") or "unknown",
        machine=this_machine(),
    )
    return _show(run_startup(job, terminal_progress()), arguments)


def _add_batch_flags(parser: Parser, input_len: str, output_len: str) -> None:
    parser.add_argument(
        "--input-len",
        default=input_len,
        metavar="LEN",
        help=f"tokens of a prompt, N or LOW-HIGH (default: {input_len})",
    )
    parser.add_argument(
        "--output-len", default=output_len, metavar="LEN", help=f"tokens of an answer (default: {output_len})"
    )
    parser.add_argument(
        "--random-range-ratio", type=share, default=0.0, metavar="X", help="draw plain lengths N from N(1-X) to N(1+X)"
    )
    parser.add_argument("--n", type=positive, default=1, metavar="N", help="answers to each prompt (default: 1)")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)


def _job(arguments: argparse.Namespace) -> OfflineJob:
    from headrace.bench.lengths import parse_lengths
    from headrace.bench.offline import Batch, OfflineJob
    from headrace.cli.bench_machine import this_machine
    from headrace.cli.version import installed_version

    ratio = arguments.random_range_ratio
    batch = Batch(
        arguments.num_prompts,
        parse_lengths(arguments.input_len, "--input-len", ratio),
        parse_lengths(arguments.output_len, "--output-len", ratio),
        arguments.n,
    )
    return OfflineJob(
        config=read_config(EngineConfig, arguments, os.environ),
        batch=batch,
        num_runs=arguments.num_runs,
        num_warmups=arguments.num_warmups,
        version=installed_version("headrace") or "unknown",
        machine=this_machine(),
    )


def _show(result: OfflineResult, arguments: argparse.Namespace) -> int:
    from headrace.bench.comparison_table import render_figures

    if arguments.json:
        write_json(result.flat(), arguments.json)
    if arguments.json != "-":
        print(render_figures(result.name, result.figures))
    return 0
