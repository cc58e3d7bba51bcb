"""The suite runs a part, keeps its result, and compares the next one with it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "suite.py"


def test_a_result_is_kept_and_the_next_is_compared_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main: Callable[[list[str]], int] = runpy.run_path(str(SCRIPT))["main"]
    model = write_tiny_model(tmp_path / "tiny")
    flags = ["--model", str(model), "--only", "decode", "--results", str(tmp_path / "results")]
    assert main([*flags, "--record"]) == 0
    assert "no result of such a machine is recorded" in capsys.readouterr().out
    (kept,) = (tmp_path / "results").glob("*.json")
    result = json.loads(kept.read_text())
    assert set(result["figures"]) == {"decode: batch latency", "decode: CPU per output token"}
    assert len(result["figures"]["decode: batch latency"]["values"]) == 5
    assert main([*flags, "--threshold", "1e9"]) == 0
    printed = capsys.readouterr().out
    assert f"A: {kept.name}" in printed
    assert "verdict: " in printed


def test_a_result_of_another_machine_is_not_compared_with(tmp_path: Path) -> None:
    last_recorded = runpy.run_path(str(SCRIPT))["last_recorded"]
    for name, machine in (("1.json", "a CPU, 2 cores"), ("2.json", "a CPU, 4 cores")):
        (tmp_path / name).write_text(json.dumps({"name": f"suite on {machine}", "figures": {}}))
    assert last_recorded(tmp_path, "a CPU, 2 cores")[0].name == "1.json"
    assert last_recorded(tmp_path, "another CPU, 2 cores") is None
