"""The benchmark of sampling runs as documented and finds no token that differs; speeds are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "sampling.py"


def test_every_way_to_sample_is_measured_and_agrees_with_torch(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    command = [sys.executable, str(BENCHMARK), "--vocab", "9000", "--rows", "3", "--rounds", "2", "--torch"]
    done = subprocess.run(
        [*command, "--json", str(report_path)], capture_output=True, text=True, timeout=120, check=True
    )

    report = json.loads(report_path.read_text())
    measured = {(m["way"], m["logits"]): m for m in report["measurements"]}
    assert report["vocab"] == 9000
    assert {logits for _, logits in measured} == {"zipf", "flat"}
    assert len(measured) == 2 * 9
    for measurement in measured.values():
        assert measurement["native_us"] > 0
        assert measurement["torch_us"] > 0
        assert measurement["num_different"] == 0
    assert all(way in done.stdout for way, _ in measured)
