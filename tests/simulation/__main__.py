"""Many lives: ``python -m tests.simulation --seeds 10000`` names every seed that went wrong, and why."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.lives import run_lives


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # ten thousand lives have much to say
    started = time.monotonic()
    report = run_lives(range(arguments.first, arguments.first + arguments.seeds))
    for failure in report.failures:
        print(f"seed {failure.seed}: {failure.error}\n  " + "\n  ".join(failure.history))
    figures = {
        "seeds": report.num_lives,
        "failures": len(report.failures),
        "seconds": round(time.monotonic() - started, 1),
        **Counter(report.totals),
    }
    print(json.dumps(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
