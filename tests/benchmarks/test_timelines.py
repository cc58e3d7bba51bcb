"""The timelines benchmark runs as documented, on a tiny model; what it measures is not judged here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "timelines.py"


def test_it_prints_a_row_per_number_of_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, report_path = write_tiny_model(tmp_path / "tiny"), tmp_path / "report.json"
    main = runpy.run_path(str(SCRIPT))["main"]
    arguments = ["--model", str(model), "--running", "1", "3", "--waiting", "5", "--steps", "12"]
    assert main([*arguments, "--json", str(report_path)]) == 0
    rows = json.loads(report_path.read_text())["rows"]
    assert [row["num_running"] for row in rows] == [1, 3]
    for row in rows:
        assert row["recording_us"] > 0
        assert row["share"] == pytest.approx(row["recording_us"] / row["step_ms"] / 1e3)
    assert len(capsys.readouterr().out.splitlines()) == 3
