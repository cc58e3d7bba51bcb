"""The comparison of a real engine with its simulation runs as documented; how close they are depends on the machine."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sim_vs_real.py"


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_it_prints_a_row_for_each_measure_and_writes_the_same(
    clock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    words = ["--model", str(model), "--threads", "1", "--clock", clock, "--requests", "12", "--shrink", "40"]
    words += ["--kv-cache-bytes", str(1 << 22), "--max-num-seqs", "4", "--max-num-batched-tokens", "64"]
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main([*words, "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["measure"] for row in rows] == [
        f"{m} {s}" for m in ("TTFT", "TPOT", "E2E") for s in ("mean", "p50", "p99")
    ]
    assert all(row["real_s"] > 0 and row["simulated_s"] > 0 for row in rows)
    assert "12 requests" in capsys.readouterr().out
