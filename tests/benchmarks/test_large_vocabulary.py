"""The benchmark of large vocabularies runs as documented; its figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_figures_are_printed_beside_their_targets(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "large_vocabulary.py"),
        "--size",
        "4000",
        "--json",
        str(report),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    figures = json.loads(report.read_text())["figures"]
    assert set(figures) == {"compile p50, ms", "mask p50, us", "mask p99, us"}
    assert all(name in done.stdout and value > 0 for name, value in figures.items())
