"""The client's cost is measured against the paced server, as documented; what it is, is not judged here."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_it_gives_cores_and_errors_at_a_known_pace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(FOLDER / "client_cost.py"))["main"]
    file = tmp_path / "cost.json"
    assert main(["--chunks-per-s", "200", "--streams", "4", "--seconds", "0.5", "--json", str(file)]) == 0
    (cost,) = json.loads(file.read_text())
    assert cost["client_cores"] > 0
    assert cost["itl_mean_ms"] == pytest.approx(cost["true_itl_ms"], rel=0.5)
    assert "client cores" in capsys.readouterr().out


def test_the_clients_agree_on_ratios_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    agreement = runpy.run_path(str(FOLDER / "client_agreement.py"))["agreement"]
    pairs = [
        {"ours": {"x": ours}, "theirs": {"x": theirs}} for ours, theirs in ((10.0, 10.0), (30.0, 20.0), (22.0, 20.0))
    ]
    row = agreement("x", pairs)
    assert (row.ours, row.theirs) == (22.0, 20.0)
    assert row.ratio == pytest.approx(1.1)
