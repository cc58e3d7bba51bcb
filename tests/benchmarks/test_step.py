"""The step benchmark runs as documented, over the fake executor; what it measures is not judged here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step.py"


def test_it_prints_a_row_per_number_of_sequences_and_writes_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_path = tmp_path / "report.json"
    main = runpy.run_path(str(SCRIPT))["main"]
    arguments = ["--executor", "fake", "--running", "1", "4", "--steps", "6", "--prompt-tokens", "20"]
    assert main([*arguments, "--json", str(report_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    report = json.loads(report_path.read_text())
    assert [row["num_running"] for row in report["rows"]] == [1, 4]
    assert [line.split()[0] for line in lines[-2:]] == ["1", "4"]
    assert report["workload"] == {"num_prompt_tokens": 20, "num_steps": 6, "sampling": "greedy"}
    assert {"python", "numpy", "torch", "cpu"} <= report["environment"].keys()
    for row in report["rows"]:
        assert row["step_ms"] >= row["engine_python_ms"] > 0.0
        assert row["executor_python_ms"] is None
