"""The profile runs as documented on a tiny model; what it measures is not judged here."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_gguf import write_tiny_gguf

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="main")
def profile_main(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    main: Callable[[list[str]], int] = runpy.run_path(str(BENCHMARKS / "profile_step.py"))["main"]
    return main


def test_it_prints_every_kind_of_operation_and_writes_the_same_as_json(
    main: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_gguf(tmp_path)
    report_path = tmp_path / "report.json"
    arguments = [str(model), "--cases", "decode", "decode_64", "--rounds", "1", "--threads", "1"]
    assert main([*arguments, "--json", str(report_path)]) == 0

    printed = capsys.readouterr().out
    report = json.loads(report_path.read_text())
    assert [profile["case"] for profile in report["profiles"]] == ["decode", "decode_64"]
    for profile in report["profiles"]:
        lines = {line["operation"]: line for line in profile["lines"]}
        assert {"embed", "norm", "attention", "matmul qkv", "matmul down", "between"} <= lines.keys()
        assert all(line["gb_s"] > 0.0 for name, line in lines.items() if name.startswith("matmul"))
        assert sum(line["fastest_ms"] for line in lines.values()) == pytest.approx(profile["fastest_ms"])
        assert all(f"  {name} " in printed for name in lines)
