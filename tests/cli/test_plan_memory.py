from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.tiny_model import write_tiny_model


def test_the_plan_is_a_table_with_a_verdict_and_the_same_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    file = tmp_path / "plan.json"
    assert main(["plan-memory", str(folder), "--kv-cache-bytes", "1MiB", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    for part in ("weights", "KV cache", "activations", "in all", "fits, with sequences of up to 512 tokens"):
        assert part in shown
    planned = json.loads(file.read_text())
    assert planned["fits"] is True
    assert planned["num_bytes"] == sum(item["num_bytes"] for item in planned["items"])
