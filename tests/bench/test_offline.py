"""Benchmarks in-process, on a tiny model: counts are exact, and other benchmarks' fields are where theirs are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.figures import read_figures
from headrace.cli.main import main
from tests.tiny_model import write_tiny_model


@pytest.fixture(name="model", scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


ENGINE = ["--kv-cache-bytes", "1MiB", "--threads", "1"]


def test_throughput_counts_every_token_and_has_vllms_and_sglangs_fields(model: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    size = ["--num-prompts", "5", "--input-len", "7", "--output-len", "4", "--num-runs", "2", "--n", "2"]
    assert main(["bench", "throughput", model, *ENGINE, *size, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert (result["num_requests"], result["total_num_tokens"]) == (5, 5 * 7 + 5 * 2 * 4)
    assert result["requests_per_second"] == pytest.approx(5 / result["elapsed_time"])
    assert result["tokens_per_second"] == pytest.approx(75 / result["elapsed_time"])
    assert result["output_throughput"] == pytest.approx(40 / result["elapsed_time"])
    name, figures = read_figures(file)
    assert name == f"throughput of {model}"
    assert len(figures["output throughput"].values) == 2
    assert figures["CPU per output token"].values[0] > 0
    assert figures["peak memory"].values[0] > 1
    assert main(["bench", "compare", str(file), str(file)]) == 0


def test_latency_has_a_time_for_each_batch_and_vllms_percentiles(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "l.json"
    size = ["--batch-size", "2", "--input-len", "5", "--output-len", "3", "--num-iters", "4", "--num-iters-warmup", "1"]
    assert main(["bench", "latency", model, *ENGINE, *size, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert len(result["latencies"]) == 4
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 4)
    assert set(result["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert min(result["latencies"]) <= result["percentiles"]["50"] <= max(result["latencies"])
    assert "batch latency (ms)" in capsys.readouterr().out


def test_startup_tells_cold_from_warm(model: str, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    starts = ["--num-iters-cold", "1", "--num-iters-warm", "1", "--json", str(file)]
    assert main(["bench", "startup", model, *starts, "--", *ENGINE]) == 0
    result = json.loads(file.read_text())
    assert result["avg_cold_startup_time"] == result["cold_startup_times"][0] > 0
    assert result["warm_startup_percentiles"]["50"] == result["warm_startup_times"][0] > 0
    assert result["figures"]["warm peak memory"]["values"][0] > 1


def test_a_prompt_that_does_not_fit_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "throughput", model, *ENGINE, "--input-len", "5000", "--num-prompts", "1"]) == 1
    assert "max_model_len" in capsys.readouterr().err
