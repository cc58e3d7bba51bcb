"""Many lives on all cores: ``python -m tests.simulation 0:10000`` names every seed that went wrong, and why."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from tests.seed_range import in_chunks, num_cores, seed_range
from tests.simulation.lives import LivesReport, run_lives
from tests.torture.figures import print_report


def run_quietly(seeds: range) -> LivesReport:
    logging.disable(logging.CRITICAL)  # ten thousand lives have much to say
    return run_lives(seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=seed_range, help="one seed, or a range START:STOP")
    parser.add_argument("--workers", type=int, default=num_cores(), help="default: all cores")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    found = LivesReport()
    for part in in_chunks(run_quietly, arguments.seeds, arguments.workers):
        found.add(part)
    for failure in found.failures:
        print("\n  ".join([f"seed {failure.seed}: {failure.error}", *failure.history]))
        print(f"  reproduce with: python -m tests.simulation {failure.seed}")
    figures = {
        "lives": found.num_lives,
        "failed": len(found.failures),
        "seconds": round(time.monotonic() - started, 1),
        **dict(sorted(found.totals.items())),
    }
    return print_report(figures, arguments.json, is_good=not found.failures)


if __name__ == "__main__":
    sys.exit(main())
