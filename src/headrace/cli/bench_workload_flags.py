"""Flags for the workload of a benchmark, the presets, and their reading into ``WorkloadOptions``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.bench_flags import DATASETS, file_path, positive, share
from headrace.cli.flags import Parser
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.workload_options import WorkloadOptions

PRESETS: dict[str, dict[str, object]] = {
    "batch-1-latency": {
        "max_concurrency": 1,
        "num_prompts": 8,
        "input_len": "128",
        "output_len": "128",
        "ignore_eos": True,
        "temperature": 0.0,
    },
    "batch-64-throughput": {
        "max_concurrency": 64,
        "num_prompts": 64,
        "input_len": "128",
        "output_len": "64",
        "ignore_eos": True,
        "temperature": 0.0,
    },
    "multi-turn-chat": {
        "dataset_name": "multi-turn",
        "endpoint": "chat",
        "max_concurrency": 8,
        "num_prompts": 8,
        "num_turns": 4,
        "prefix_len": "1000",
        "input_len": "25",
        "output_len": "64",
        "ignore_eos": True,
        "temperature": 0.0,
    },
}
"""The three scenarios of the classic exercise, as defaults that flags override."""


def add_preset_flag(parser: Parser, argv: Sequence[str]) -> None:
    """``--preset``, whose values become the defaults of the other flags; call it after they were added."""
    names = ", ".join(PRESETS)
    parser.add_argument(
        "--preset", choices=tuple(PRESETS), metavar="NAME", help=f"flags of a classic scenario: {names}"
    )
    words = [word.partition("=")[2] for word in argv if word.startswith("--preset=")]
    words += [argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "--preset"]
    for word in words:
        parser.set_defaults(**PRESETS.get(word, {}))


def add_workload_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("workload")
    aliases = ("prefix_repetition", "gsp", "mooncake", "timed_trace", "azure", "burstgpt", "servegen")
    flags.add_argument(
        "--dataset-name",
        choices=(*DATASETS, *aliases),
        default="random",
        metavar="NAME",
        help=f"{', '.join(DATASETS)} (default: random)",
    )
    flags.add_argument("--dataset-path", type=file_path, metavar="FILE", help="the file of a data set that is one")
    flags.add_argument("--workload", type=file_path, metavar="FILE", help="replay a workload that was saved")
    flags.add_argument(
        "--save-workload", type=file_path, metavar="FILE", help="keep the workload, to replay it exactly"
    )
    flags.add_argument(
        "--input-len",
        "--random-input-len",
        "--gsp-question-len",
        "--prefix-repetition-suffix-len",
        default="256",
        metavar="LEN",
        help="tokens of a prompt or question: N, LOW-HIGH, lognormal:MEDIAN:SIGMA, normal:MEAN:STD, exponential:MEAN "
        "(default: 256)",
    )
    flags.add_argument(
        "--output-len",
        "--random-output-len",
        "--gsp-output-len",
        "--prefix-repetition-output-len",
        "--sharegpt-output-len",
        metavar="LEN",
        help="tokens of an answer, at most (default: 128, or the file's)",
    )
    flags.add_argument(
        "--random-range-ratio", type=share, default=0.0, metavar="X", help="draw plain lengths N from N(1-X) to N(1+X)"
    )
    flags.add_argument(
        "--prefix-len",
        "--random-prefix-len",
        "--gsp-system-prompt-len",
        "--prefix-repetition-prefix-len",
        metavar="LEN",
        help="tokens of the prefix that requests share (default: none; 512 for generated-shared-prefix)",
    )
    _add_kind_flags(flags)
    _add_mix_flags(parser.add_argument_group("mixed into any workload"))


def _add_kind_flags(flags: argparse._ArgumentGroup) -> None:
    flags.add_argument(
        "--num-groups",
        "--gsp-num-groups",
        "--prefix-repetition-num-prefixes",
        type=positive,
        default=8,
        metavar="N",
        help="prefixes of generated-shared-prefix (default: 8)",
    )
    flags.add_argument(
        "--zipf",
        "--gsp-zipf-alpha",
        type=float,
        default=0.0,
        metavar="X",
        help="how uneven they are used (default: 0, even)",
    )
    flags.add_argument(
        "--num-turns", type=positive, default=4, metavar="N", help="of a multi-turn session (default: 4)"
    )
    flags.add_argument("--think-time", type=float, default=0.0, metavar="S", help="between an answer and the next turn")
    flags.add_argument(
        "--max-turns", type=positive, default=1, metavar="N", help="of a ShareGPT conversation (default: 1)"
    )
    flags.add_argument(
        "--trace-block-size",
        type=positive,
        default=512,
        metavar="N",
        help="tokens a block id stands for (default: 512)",
    )
    flags.add_argument("--max-input-len", type=positive, metavar="N", help="cut a trace's prompts")
    flags.add_argument("--max-output-len", type=positive, metavar="N", help="cut a trace's answers")
    flags.add_argument(
        "--prompt-format",
        choices=("text", "ids"),
        default="text",
        help="ids sends token ids: exact lengths with any vocabulary (default: text)",
    )


def _add_mix_flags(flags: argparse._ArgumentGroup) -> None:
    flags.add_argument("--n", type=positive, default=1, metavar="N", help="answers to each request (default: 1)")
    flags.add_argument("--abort-rate", type=share, default=0.0, metavar="X", help="share of clients that hang up")
    flags.add_argument("--abort-after", type=positive, default=8, metavar="N", help="chunks until they do (default: 8)")
    flags.add_argument(
        "--structured-rate", type=share, default=0.0, metavar="X", help="share of requests with a JSON schema"
    )
    flags.add_argument("--schema-path", type=file_path, metavar="FILE", help='their schemas: lines of {"schema": ...}')
    flags.add_argument(
        "--tool-rate", type=share, default=0.0, metavar="X", help="share of requests that must call a tool"
    )


def read_workload(arguments: argparse.Namespace) -> WorkloadOptions | Path:
    """What to make, for as many runs as there are, or the file to replay. Raises ``ConfigError``."""
    from headrace.bench.lengths import parse_lengths
    from headrace.bench.workload_options import DATASET_ALIASES, DEFAULT_PREFIX, MixOptions, WorkloadOptions

    if arguments.workload is not None:
        path: Path = arguments.workload
        return path
    ratio = arguments.random_range_ratio
    output, prefix = arguments.output_len, arguments.prefix_len
    return WorkloadOptions(
        dataset=DATASET_ALIASES.get(arguments.dataset_name, arguments.dataset_name),
        path=arguments.dataset_path,
        num_sessions=arguments.num_prompts * arguments.num_runs,
        seed=arguments.seed,
        input_len=parse_lengths(arguments.input_len, "--input-len", ratio),
        output_len=None if output is None else parse_lengths(output, "--output-len", ratio),
        prefix_len=DEFAULT_PREFIX if prefix is None else parse_lengths(prefix, "--prefix-len"),
        has_prefix=prefix is not None,
        num_groups=arguments.num_groups,
        zipf=arguments.zipf,
        num_turns=arguments.num_turns,
        max_turns=arguments.max_turns,
        think_s=_think_s(arguments),
        block_tokens=arguments.trace_block_size,
        max_input_tokens=arguments.max_input_len,
        max_output_tokens=arguments.max_output_len,
        mix=MixOptions(
            num_choices=arguments.n,
            abort_rate=arguments.abort_rate,
            abort_after_chunks=arguments.abort_after,
            structured_rate=arguments.structured_rate,
            schema_path=arguments.schema_path,
            tool_rate=arguments.tool_rate,
        ),
    )


def _think_s(arguments: argparse.Namespace) -> float:
    if not 0 <= arguments.think_time < 1e6:
        raise ConfigError(f"--think-time {arguments.think_time:g} must be a number of seconds from 0")
    return float(arguments.think_time)
