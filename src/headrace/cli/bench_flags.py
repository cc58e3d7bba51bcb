"""Flags that several kinds of benchmark share: the server, the load, the workload; and what they mean.

Names are vLLM's, else SGLang's; both where they differ.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.flags import Parser
from headrace.core.errors import ConfigError

BACKENDS = {
    "openai": "completions",
    "openai-chat": "chat",
    "vllm": "completions",
    "vllm-chat": "chat",
    "sglang": "generate",
    "sglang-oai": "completions",
    "sglang-oai-chat": "chat",
    "headrace": "chat",
}
"""Names that other benchmarks give to an endpoint."""
ENDPOINTS = {
    "completions": "completions",
    "chat": "chat",
    "generate": "generate",
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/generate": "generate",
}
DATASETS = ("random", "generated-shared-prefix", "multi-turn", "sharegpt", "openai", "custom", "trace")
API_KEY_VARIABLE = "OPENAI_API_KEY"

Group = argparse._ArgumentGroup


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    return _whole(text, 0)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0")
    return value


def rate(text: str) -> float:
    """Requests a second; ``inf`` is as fast as possible."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} must be above 0 requests a second, or inf")
    return value


def share(text: str) -> float:
    """A number in [0, 1]."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be between 0 and 1")
    return value


def add_server_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("server")
    flags.add_argument("--base-url", metavar="URL", help="the server (default: http://127.0.0.1:8000)")
    flags.add_argument("--host", metavar="HOST", help="the server's host, instead of --base-url")
    flags.add_argument("--port", type=positive, metavar="N", help="the server's port, instead of --base-url")
    flags.add_argument(
        "--endpoint",
        choices=tuple(ENDPOINTS),
        metavar="NAME",
        help="completions (default), chat, or generate (SGLang's native one); or their paths",
    )
    flags.add_argument("--backend", choices=tuple(BACKENDS), metavar="NAME", help=argparse.SUPPRESS)
    flags.add_argument("--model", metavar="NAME", help="the model to ask for (default: the first the server lists)")
    flags.add_argument(
        "--tokenizer",
        default="auto",
        metavar="MODEL",
        help="who counts prompt tokens: a model on this machine, words (about one token each), or auto: the "
        "server's /tokenize if it has one, else words (default: auto)",
    )
    flags.add_argument("--api-key", metavar="KEY", help=f"bearer key (default: ${API_KEY_VARIABLE})")
    flags.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="a further header")
    flags.add_argument(
        "--extra-body", "--extra-request-body", metavar="JSON", default="{}", help="fields for every request"
    )
    flags.add_argument("--temperature", type=float, metavar="X", help="sampling; not sent by default")
    flags.add_argument("--top-p", type=float, metavar="X", help="sampling; not sent by default")
    flags.add_argument("--top-k", type=int, metavar="N", help="sampling; not sent by default")
    flags.add_argument("--ignore-eos", action="store_true", help="have every answer be as long as asked for")
    flags.add_argument("--disable-stream", action="store_true", help="ask for whole replies: no TTFT, no gaps")
    flags.add_argument(
        "--request-timeout",
        type=above_zero,
        default=600.0,
        metavar="S",
        help="seconds after which a request is given up and counts as failed (default: 600)",
    )
    flags.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=0.0,
        metavar="S",
        help="wait so long for the server to be ready (default: 0)",
    )


def add_start_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("a server to start")
    flags.add_argument(
        "--start",
        metavar="COMMAND",
        help="start this server, wait for it and stop it: [NAME=]PROGRAM ARGUMENTS; {port} becomes a free port",
    )
    flags.add_argument(
        "--start-timeout", type=above_zero, default=300.0, metavar="S", help="for it to be ready (default: 300)"
    )


def add_load_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("load")
    _add_loop_flags(flags)
    flags.add_argument("--num-prompts", type=positive, default=100, metavar="N", help="sessions a run (default: 100)")
    flags.add_argument("--duration", type=above_zero, metavar="S", help="send nothing new after so many seconds")
    flags.add_argument(
        "--num-runs",
        type=positive,
        default=3,
        metavar="N",
        help="repeats, for intervals (default: 3); each has prompts of its own",
    )
    flags.add_argument(
        "--num-warmups",
        "--warmup-requests",
        type=not_negative,
        default=2,
        metavar="N",
        help="requests before (default: 2)",
    )
    flags.add_argument(
        "--seed", type=not_negative, default=0, metavar="N", help="of workload and arrivals (default: 0)"
    )
    flags.add_argument(
        "--slo",
        "--goodput",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME:MS",
        help="objectives: ttft, tpot, e2e, stall (the worst gap), in milliseconds: ttft:500 tpot:33",
    )
    flags.add_argument(
        "--max-client-lag",
        type=above_zero,
        metavar="MS",
        help="fail if this client is later than that (default: a tenth of TTFT and gaps, at least 10 ms)",
    )
    flags.add_argument(
        "--verify",
        type=positive,
        nargs="?",
        const=8,
        default=0,
        metavar="N",
        help="ask N answers of each run (8) again alone, greedily, and compare",
    )


def _add_loop_flags(flags: Group) -> None:
    flags.add_argument(
        "--request-rate",
        type=rate,
        default=math.inf,
        metavar="R",
        help="open loop: requests a second, whatever the server does (default: inf, all at once)",
    )
    flags.add_argument(
        "--burstiness",
        type=above_zero,
        default=1.0,
        metavar="X",
        help="gamma shape of the gaps: 1 is Poisson (default), less is burstier",
    )
    flags.add_argument(
        "--max-concurrency",
        type=positive,
        metavar="N",
        help="closed loop of N clients; with a rate, a limit whose waiting counts as latency",
    )
    flags.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="change the rate during a run")
    flags.add_argument("--ramp-up-start-rps", type=above_zero, metavar="R", help="the ramp's first rate")
    flags.add_argument("--ramp-up-end-rps", type=above_zero, metavar="R", help="the ramp's last rate")
    flags.add_argument(
        "--use-trace-timestamps", action="store_true", help="send when the trace says (data set trace, or --workload)"
    )
    flags.add_argument(
        "--trace-slowdown",
        "--mooncake-slowdown-factor",
        type=above_zero,
        default=1.0,
        metavar="X",
        help="stretch the trace's times (default: 1)",
    )


def read_endpoint(arguments: argparse.Namespace) -> str:
    if arguments.endpoint is not None:
        return ENDPOINTS[arguments.endpoint]
    return BACKENDS[arguments.backend or "openai"]


def read_base_url(arguments: argparse.Namespace) -> str:
    if arguments.base_url is not None:
        if arguments.host is not None or arguments.port is not None:
            raise ConfigError("--base-url and --host or --port both say where the server is; give one")
        return str(arguments.base_url)
    return f"http://{arguments.host or '127.0.0.1'}:{arguments.port or 8000}"


def read_headers(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    headers = {}
    key = arguments.api_key or environ.get(API_KEY_VARIABLE)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    for word in arguments.header:
        name, equals, value = word.partition("=")
        if not equals or not name or any(c in word for c in "\r\n"):
            raise ConfigError(f"--header {word!r} is not NAME=VALUE")
        headers[name] = value
    return headers


def read_extra_body(text: str, flag: str = "--extra-body") -> dict[str, Any]:
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{flag} {text!r} is not a JSON object: {error}") from error
    return body


def read_pairs(words: Sequence[str], flag: str) -> dict[str, str]:
    """``KEY=VALUE`` words as a mapping."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} {word!r} is not KEY=VALUE")
        pairs[name] = value
    return pairs


def file_path(text: str) -> Path:
    return Path(text).expanduser()


def _whole(text: str, minimum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least {minimum}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number") from None
