"""The benchmark of grammars runs as documented and finds nothing accepted wrongly; speeds are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "grammar" / "data" / "json_schema_test_suite.jsonl"


@pytest.mark.model
def test_the_table_is_printed_with_every_target(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "grammar.py"), "--sample", str(SUITE), "--every", "20"]
    command += ["--walks", "100", "--json", str(report_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(report_path.read_text())
    rows = {row["what"]: row for row in report["rows"]}
    assert rows["instances accepted wrongly"]["reached"] == "0"
    assert rows["of 100 random walks, explained otherwise"]["reached"] == "0"
    assert all(row["target"] in done.stdout for row in rows.values())
    assert report["hostile"]["3,000 chained rules"][0].startswith("the grammar has 3002 rules")
