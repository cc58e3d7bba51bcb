"""Profiles: how a machine's parts are told apart, what is kept of them, and that a real engine can be measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cache.kv_cache import KVCacheManager
from headrace.cli.main import main
from headrace.core.client import EngineInfo
from headrace.core.clock import VirtualClock
from headrace.core.errors import ConfigError
from headrace.engine.engine import Engine
from headrace.scheduler.build import BatchLimits, build_scheduler
from headrace.scheduler.cost_model import StepCostModel, StepFeatures, chunk_pairs
from headrace.sim.calibration import Calibration
from headrace.sim.cpu_profile import CpuProfile, Curve, ProfiledStepTime, read_profile, write_profile
from headrace.sim.simulated_executor import ScriptedAnswer, SimulatedDevice, SimulatedExecutor
from tests.engine.house import ByteTexts
from tests.tiny_model import write_tiny_model

LIMITS = BatchLimits(8, 64, 512)
PROFILE = CpuProfile(
    model="made up",
    machine="paper",
    num_kv_tokens=4096,
    max_model_len=512,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    tokens=Curve((1, 8, 64), (0.010, 0.012, 0.080)),
    samples=Curve((0, 1, 8), (0.0, 0.002, 0.009)),
    context_s=2e-6,
    pair_s=1e-7,
)


def made_up_engine() -> tuple[Engine, VirtualClock]:
    """The real engine over a device that is as slow as ``PROFILE`` says."""
    clock = VirtualClock()
    device = SimulatedDevice(256, ProfiledStepTime(PROFILE))
    executor = SimulatedExecutor(device, clock, {0: ScriptedAnswer(1 << 20, 1)})
    kv = KVCacheManager(256, 16, enable_prefix_caching=True)
    info = EngineInfo(
        model="made up",
        architecture="none",
        dtype="none",
        backend="none",
        num_parameters=0,
        vocab_size=50,
        max_model_len=LIMITS.max_model_len,
        block_size=16,
        num_blocks=256,
        kv_cache_bytes=0,
        max_num_seqs=LIMITS.max_num_seqs,
        max_num_batched_tokens=LIMITS.max_num_batched_tokens,
    )
    return Engine(build_scheduler("fcfs", kv, LIMITS, StepCostModel()), kv, executor, ByteTexts(), clock, info), clock


def test_measuring_a_machine_finds_what_it_is_made_of() -> None:
    engine, clock = made_up_engine()
    calibration = Calibration(engine, clock)
    calibration.warm_up()
    calibration.measure_round()
    calibration.measure_round()
    found, known = ProfiledStepTime(calibration.profile("paper")), ProfiledStepTime(PROFILE)
    for batch, context in ((1, 40), (3, 600), (8, 2000)):
        features = StepFeatures(batch, context, 0, 0)
        assert found.step_s(features, batch) == pytest.approx(known.step_s(features, batch), rel=0.02)
    for start, count in ((0, 5), (0, 64), (100, 64), (0, 30)):
        features = StepFeatures(0, 0, count, chunk_pairs(start, count))
        assert found.step_s(features, 0) == pytest.approx(known.step_s(features, 0), rel=0.03)
    assert calibration.profile("paper").request_s == pytest.approx(0.0, abs=1e-9)
    mixed = StepFeatures(4, 800, 40, chunk_pairs(64, 40))
    assert found.step_s(mixed, 5) == pytest.approx(known.step_s(mixed, 5), rel=0.03)


def test_a_curve_is_straight_between_its_points_and_goes_on_beyond() -> None:
    curve = Curve((0, 10, 20), (0.0, 1.0, 3.0))
    assert [curve.at(size) for size in (0, 5, 15, 20, 30)] == [0.0, 0.5, 2.0, 3.0, 5.0]
    with pytest.raises(ValueError, match="rising sizes"):
        Curve((2, 1), (0.0, 1.0))


def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_profile(PROFILE, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == PROFILE
    with pytest.raises(ConfigError, match="cannot write"):
        write_profile(PROFILE, tmp_path / "none" / "p.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, r"Expected `int` <= 1 - at `\$.schema`"),
        ({"tokens": {"sizes": [1], "seconds": [1.0]}}, r"length >= 2 - at `\$.tokens"),
        ({"tokens": {"sizes": [2, 1], "seconds": [1.0, 2.0]}}, "rising sizes"),
        ({"context_s": -1.0}, r"at `\$.context_s`"),
        ({"extra": 1}, "unknown field `extra`"),
    ],
)
def test_a_profile_that_lies_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profile(PROFILE, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=said):
        read_profile(path)


@pytest.fixture(name="tiny_model", scope="module")
def make_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def test_a_real_engine_is_measured_and_then_simulated(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "tiny.json"
    flags = ["--threads", "1", "--kv-cache-bytes", "4MiB", "--max-num-seqs", "4", "--max-num-batched-tokens", "32"]
    assert main(["simulate", "calibrate", str(tiny_model), "-o", str(profile), *flags]) == 0
    assert f"--device cpu:{profile}" in capsys.readouterr().out
    measured = read_profile(profile)
    assert (measured.max_num_seqs, measured.max_num_batched_tokens) == (4, 32)
    assert 0.0 < measured.tokens.at(1) <= measured.tokens.at(32)

    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_s":0,"input_tokens":60,"output_tokens":5}\n')
    assert main(["simulate", "--trace", str(trace), "--device", f"cpu:{profile}", "--policy", "fcfs"]) == 0
    assert "interactive" in capsys.readouterr().out
    assert main(["simulate", "--trace", str(trace), "--device", f"cpu:{profile}", "--model", "llama-8b"]) == 2
    assert "leave --model out" in capsys.readouterr().err


def test_calibrate_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "calibrate"]) == 2
    assert "calibrate needs a file to write" in capsys.readouterr().err
