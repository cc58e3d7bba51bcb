"""``headrace simulate``: play a trace to the real scheduler on a virtual clock, and say how well it was served.

``headrace simulate calibrate`` measures this machine, so that it can be simulated, too.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.sim.report import SimulationReport
    from headrace.sim.scenario import Hardware

_DESCRIPTION = """Play traces of requests to headrace's scheduler and KV cache on a virtual clock: minutes of a large
model's traffic in seconds, without the model. The same seed gives the same bytes."""

_TRACE_HELP = (
    "requests, one JSON object a line (also .gz, Mooncake's or Azure's format); options follow the name: "
    "FILE,class=batch,share=0.1,jitter=3,cut=32768,steady; may be repeated"
)


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "calibrate":
        from headrace.cli import simulate_calibrate

        return simulate_calibrate.main(argv[1:])
    arguments = _parser().parse(argv)
    if not arguments.trace:
        raise ConfigError("simulate needs a trace: headrace simulate --trace FILE --model llama-70b", "trace")

    if arguments.load is not None and arguments.loads is not None:
        raise ConfigError(f"--load is {arguments.load} and --loads {arguments.loads}; give one of them", "loads")
    reports = []
    for report in _runs(arguments):
        reports.append(report)
        if arguments.json != "-":
            _show(report)
    if arguments.picture is not None:
        _draw(reports, arguments.picture)
    if arguments.json:
        write_json(reports, arguments.json)
    return 0


def _runs(arguments: Namespace) -> Iterator[SimulationReport]:
    """Every policy at every load, each when it is asked for."""
    from headrace.sim.scenario import Scenario, parse_loads, parse_policy, parse_source

    scenario = Scenario(
        sources=[parse_source(text) for text in arguments.trace],
        hardware=_hardware(arguments),
        duration_s=arguments.duration,
        seed=arguments.seed,
        enable_prefix_caching=not arguments.no_prefix_caching,
    )
    policies = [parse_policy(text) for text in arguments.policy or ["slo"]]
    loads = parse_loads(arguments.loads or arguments.load or "1")
    for policy, load in product(policies, loads):
        yield scenario.run(policy, load)


def _show(report: SimulationReport) -> None:
    from headrace.cli.simulate_report import render

    print(render(report), end="\n\n", flush=True)


def _hardware(arguments: Namespace) -> Hardware:
    from headrace.sim.scenario import parse_hardware

    return parse_hardware(arguments.model, arguments.device).limited(
        arguments.kv_tokens, arguments.max_model_len, arguments.max_num_seqs
    )


def _parser() -> Parser:
    parser = Parser("simulate", _DESCRIPTION, "--trace FILE --model SHAPE")
    what = parser.add_argument_group("what is simulated")
    what.add_argument("--trace", action="append", metavar="FILE", help=_TRACE_HELP)
    what.add_argument("--model", metavar="SHAPE", help="model shape, as llama-70b, llama-8b, qwen3-32b")
    what.add_argument(
        "--device", default="h100x8", metavar="D", help="h100x8, or cpu:PROFILE.json of calibrate (default: h100x8)"
    )
    what.add_argument(
        "--policy",
        action="append",
        metavar="P",
        help="slo, fcfs, priority or vllm; fcfs:512 sets the most tokens of a step; may be repeated (default: slo)",
    )
    load = parser.add_argument_group("load")
    load.add_argument("--load", metavar="X", help="multiply the traces' rates (default: 1)")
    load.add_argument("--loads", metavar="X,Y", help="several loads, one run each")
    load.add_argument("--duration", type=_seconds, default=math.inf, metavar="S", help="seconds in which requests come")
    load.add_argument("--seed", type=_whole(0), default=0, metavar="N", help="of what is drawn (default: 0)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-num-seqs", type=_whole(1), metavar="N", help="most sequences in one step")
    limits.add_argument("--max-model-len", type=_whole(1), metavar="N", help="most tokens of a sequence")
    limits.add_argument("--kv-tokens", type=_whole(1), metavar="N", help="tokens of the KV cache; default: what fits")
    limits.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt whole")
    output = parser.add_argument_group("output")
    output.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw goodput over load")
    output.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    return parser


def _draw(reports: Sequence[SimulationReport], path: Path) -> None:
    from headrace.sim.picture import goodput_picture

    try:
        path.write_text(goodput_picture(reports), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; --picture names a file", "picture") from error


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= 1 << 40:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
