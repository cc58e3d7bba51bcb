"""``headrace bench``: finds the kind of benchmark and runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion

USAGE = "usage: headrace bench KIND [flags]"


def _serve(argv: Sequence[str]) -> int:
    from headrace.cli import bench_serve

    return bench_serve.main(argv)


def _capacity(argv: Sequence[str]) -> int:
    from headrace.cli import bench_capacity

    return bench_capacity.main(argv)


def _compare(argv: Sequence[str]) -> int:
    from headrace.cli import bench_compare

    return bench_compare.main(argv)


def _throughput(argv: Sequence[str]) -> int:
    from headrace.cli import bench_offline

    return bench_offline.throughput(argv)


def _latency(argv: Sequence[str]) -> int:
    from headrace.cli import bench_offline

    return bench_offline.latency(argv)


def _startup(argv: Sequence[str]) -> int:
    from headrace.cli import bench_offline

    return bench_offline.startup(argv)


def _sweep(argv: Sequence[str]) -> int:
    from headrace.cli import bench_sweep

    return bench_sweep.main(argv)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of benchmark: its name, its line in the help, and the function that imports and runs it."""

    name: str
    help: str
    main: Callable[[Sequence[str]], int]


KINDS = (
    Kind("serve", "load a server by URL and report latency, throughput and goodput", _serve),
    Kind("capacity", "find the highest rate at which a server keeps its objectives", _capacity),
    Kind("throughput", "give the engine many prompts at once, in this process", _throughput),
    Kind("latency", "run one batch after another, in this process", _latency),
    Kind("startup", "time the start of the server, cold and warm", _startup),
    Kind("compare", "compare two results, or several servers in interleaved rounds", _compare),
    Kind("sweep", "measure every combination of server and client settings", _sweep),
)


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    for kind in KINDS:
        if kind.name == argv[0]:
            return kind.main(argv[1:])
    hint = suggestion(argv[0], [kind.name for kind in KINDS])
    raise ConfigError(f"unknown benchmark {argv[0]!r}{hint or '; headrace bench --help lists them'}")


def _help() -> str:
    width = max(len(kind.name) for kind in KINDS)
    lines = [USAGE, "", "Measure servers and engines, and compare what was measured.", "", "kinds:"]
    lines += [f"  {kind.name:<{width}}  {kind.help}" for kind in KINDS]
    lines += ["", "headrace bench KIND --help shows a kind's flags; flags have vLLM's and SGLang's names."]
    return "\n".join(lines)
