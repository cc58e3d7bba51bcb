"""The simulator is true to a measured engine, and its benchmark prints and writes what it says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "simulator.py"


def run(*words: str) -> int:
    code: int = runpy.run_path(str(SCRIPT))["main"](list(words))
    return code


def test_means_are_those_that_vllm_was_measured_to_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("logs", "--json", str(tmp_path / "out.json")) == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    bounds = {"rtxpro6000": 0.03, "rtx4090": 0.05}
    assert {(row["gpu"], row["measure"]) for row in rows} == {(g, m) for g in bounds for m in ("TTFT", "TPOT", "E2E")}
    for row in rows:
        assert abs(row["error"]) < bounds[row["gpu"]], row
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_goodput_is_a_row_for_each_policy_and_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["goodput", "--policy", "fcfs:2048", "slo", "--loads", "1", "2", "--duration", "15"]
    assert run(*words, "--json", str(tmp_path / "out.json"), "--picture", str(tmp_path / "out.svg")) == 0
    reports = json.loads((tmp_path / "out.json").read_text())
    assert [(r["policy"], r["load"]) for r in reports] == [(p, x) for p in ("fcfs:2048", "slo") for x in (1.0, 2.0)]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["policy", "fcfs:2048", "fcfs:2048", "slo", "slo"]
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
