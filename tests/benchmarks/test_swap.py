"""The swap benchmark runs as documented, on a tiny model; what it measures is not judged here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "swap.py"


def test_every_way_to_bring_blocks_back_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, report_path = write_tiny_model(tmp_path / "tiny"), tmp_path / "report.json"
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main(["--model", str(model), "--threads", "1", "--prompt-tokens", "64", "--json", str(report_path)]) == 0
    report = json.loads(report_path.read_text())
    none, host, disk = report["prefixes"]
    assert (none["num_cached_tokens"], none["num_restored_blocks"]) == (0, 0)
    assert host["num_cached_tokens"] == disk["num_cached_tokens"] == 48
    assert (host["num_fetched_blocks"], disk["num_fetched_blocks"]) == (0, 9)
    again, swapped = report["preemptions"]
    assert again["num_preemptions"] > 0
    assert (again["num_restored_blocks"], swapped["num_restored_blocks"] > 0) == (0, True)
    assert swapped["num_computed_tokens"] < again["num_computed_tokens"]
    assert "more sequences than the KV cache holds" in capsys.readouterr().out
