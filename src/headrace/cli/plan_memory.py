"""``headrace plan-memory``: what a model would take of this machine's memory, before any of it is taken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.cli.flags import Parser, add_config_flags, read_config
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.config import ServeConfig
from headrace.core.units import format_bytes

if TYPE_CHECKING:
    from headrace.engine.memory_plan import MemoryPlan


def main(argv: Sequence[str]) -> int:
    """Print the plan; exit code 1 if it does not fit."""
    parser = Parser(
        "plan-memory", "Say what MODEL would take of this machine's memory. Takes serve's flags.", "[MODEL]"
    )
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    add_config_flags(parser, ServeConfig)
    arguments = parser.parse(argv)
    config = read_config(ServeConfig, arguments, os.environ)
    from headrace.cli.progress import terminal_progress
    from headrace.engine.factory import plan_of

    plan = plan_of(config, terminal_progress())
    if arguments.json:
        write_json({**asdict(plan), "num_bytes": plan.num_bytes, "fits": plan.fits}, arguments.json)
    if arguments.json != "-":
        print(render(plan))
    return int(not plan.fits)


def render(plan: MemoryPlan) -> str:
    """A line for each part, then the sum against what is free, and what would change it."""
    rows = [(item.name, format_bytes(item.num_bytes), item.explanation) for item in plan.items]
    rows.append(("in all", format_bytes(plan.num_bytes), f"of {format_bytes(plan.available_bytes)} free"))
    names, sizes = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = [f"{name:<{names}}  {size:>{sizes}}  {explanation}" for name, size, explanation in rows]
    verdict = (
        f"{plan.model} fits, with sequences of up to {plan.limits.max_model_len} tokens"
        if plan.fits
        else f"{plan.model} does not fit; see --dtype, --kv-cache-bytes and --max-num-batched-tokens"
    )
    return "\n".join([*lines, "", verdict])
