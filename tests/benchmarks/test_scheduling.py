"""The scheduling benchmark runs as documented; what it measures is not judged here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scheduling.py"


def test_it_prints_a_row_per_policy_and_queue_and_writes_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_path = tmp_path / "report.json"
    main = runpy.run_path(str(SCRIPT))["main"]
    arguments = ["--policy", "slo", "priority", "--running", "4", "--waiting", "0", "20", "--steps", "5"]
    assert main([*arguments, "--json", str(report_path)]) == 0

    rows = json.loads(report_path.read_text())["rows"]
    assert [(row["policy"], row["num_waiting"]) for row in rows] == [
        ("slo", 0),
        ("slo", 20),
        ("priority", 0),
        ("priority", 20),
    ]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["slo", "slo"] + ["priority"] * 2
    for row in rows:
        assert row["step_p99_us"] >= row["step_us"] >= row["step_min_us"] > 0.0
