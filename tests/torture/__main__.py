"""What takes too long to run with every change: ``python -m tests.torture NAME``; ``NAME --help`` tells more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

TORTURES: Final = {
    "aborts": "100,000 requests ended at random moments, on the real engine",
    "cycles": "200 starts and stops under load",
    "faults": "the faults of docs/reliability.md, one after another, as a table",
    "recovery": "how long a server is away when its engine is killed",
    "soak": "ten minutes of mixed load, then silence",
}


def main(argv: Sequence[str]) -> int:
    if argv == ["all"]:
        return max([run(name, []) for name in TORTURES])
    if not argv or argv[0] not in TORTURES:
        width = max(map(len, TORTURES))
        print("python -m tests.torture NAME [OPTIONS], or all\n")
        print("\n".join(f"  {name:<{width}}  {what}" for name, what in TORTURES.items()))
        return 2
    return run(argv[0], argv[1:])


def run(name: str, argv: Sequence[str]) -> int:
    print(f"{name}: {TORTURES[name]}", flush=True)
    torture: Callable[[Sequence[str]], int] = import_module(f"tests.torture.{name}").main
    return torture(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
