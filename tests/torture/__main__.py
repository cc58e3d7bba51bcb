"""What takes too long to run with every change: ``python -m tests.torture NAME``; ``NAME --help`` tells more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final


@dataclass(frozen=True, slots=True)
class Torture:
    """A module of this package whose ``main`` takes words and returns an exit code, and the words that come first."""

    module: str
    what: str
    words: tuple[str, ...] = ()

    def run(self, argv: Sequence[str]) -> int:
        main: Callable[[Sequence[str]], int] = import_module(f"tests.torture.{self.module}").main
        return main([*self.words, *argv])


TORTURES: Final = {
    "aborts": Torture("aborts", "100,000 requests ended at random moments, on the real engine"),
    "cycles": Torture("cycles", "200 starts and stops under load"),
    "faults": Torture("faults", "the faults of docs/reliability.md, one after another, as a table"),
    "files": Torture("hostile", "50,000 damaged model files", ("files",)),
    "http": Torture("hostile", "200,000 hostile connections", ("http",)),
    "lag": Torture("loop_lag", "how long the event loop stands still while a megabyte comes in"),
    "recovery": Torture("recovery", "how long a server is away when its engine is killed"),
    "slow": Torture("slow_clients", "500 clients that send a byte of their headers a second"),
    "soak": Torture("soak", "ten minutes of mixed load, then silence"),
    "sources": Torture("hostile", "20,000 broken schemas, patterns and grammars", ("sources",)),
}


def main(argv: Sequence[str]) -> int:
    if argv == ["all"]:
        return max([_run(name, []) for name in TORTURES])
    if not argv or argv[0] not in TORTURES:  # "help", say
        width = max(map(len, TORTURES))
        print("python -m tests.torture NAME [OPTIONS], or all\n")
        print("\n".join(f"  {name:<{width}}  {torture.what}" for name, torture in TORTURES.items()))
        return 2
    return _run(argv[0], argv[1:])


def _run(name: str, argv: Sequence[str]) -> int:
    print(f"{name}: {TORTURES[name].what}", flush=True)
    return TORTURES[name].run(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
