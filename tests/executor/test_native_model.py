"""Which weights and which tuning the native executor runs with, whatever state the cache of tunings is in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.checkpoint.open import open_checkpoint
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.executor import native_model
from headrace.executor.native_model import NativeWeights, build_program, choose_tuning, load_weights
from headrace.executor.native_weights import WeightChoice
from headrace.model.config_parser import parse_model_config
from headrace.native.host import Host, this_host
from headrace.native.packed_model import PackedModel
from headrace.native.tuning import MatmulTuning, MatrixShape, TunedClass, TunedShape, TuningTable, default_table
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module", name="model")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, NativeWeights]:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path_factory.mktemp("tiny")))
    config = parse_model_config(checkpoint)
    return config, load_weights(checkpoint, config, "int8", 1, lambda done, total: None)


@pytest.fixture(name="weights")
def tiny_weights(model: tuple[ModelConfig, NativeWeights], monkeypatch: pytest.MonkeyPatch) -> NativeWeights:
    """Large enough to be worth a measurement, which takes next to no time."""
    monkeypatch.setattr(native_model, "_LEAST_TUNED_BYTES", 0)
    monkeypatch.setattr(native_model, "_TUNING_BUDGET_S", 0.05)
    return model[1]


def table_for(weights: NativeWeights, host: Host, seconds: float = 1.0) -> TuningTable:
    """A table that can be told apart."""
    shapes = dict.fromkeys(map(MatrixShape.of, weights.packed.matrices.values()))
    classes = (TunedClass(MatmulTuning(1, 1, 32, 4096), 1),) * 4
    return TuningTable(
        host=host, threads=1, shapes=tuple(TunedShape(shape, classes) for shape in shapes), seconds=seconds
    )


def test_a_small_model_is_not_worth_a_measurement(model: tuple[ModelConfig, NativeWeights], tmp_path: Path) -> None:
    _, weights = model
    table = choose_tuning(weights, this_host(), 1, tmp_path)
    assert table == default_table(map(MatrixShape.of, weights.packed.matrices.values()), this_host(), 1)
    assert not list(tmp_path.iterdir())


def test_what_was_measured_once_is_read_from_then_on(weights: NativeWeights, tmp_path: Path) -> None:
    first = choose_tuning(weights, this_host(), 1, tmp_path)
    (file,) = (tmp_path / "tuning").iterdir()
    marked = msgspec.structs.replace(first, seconds=77.0)
    file.write_bytes(msgspec.json.encode(marked))
    assert choose_tuning(weights, this_host(), 1, tmp_path) == marked
    other = msgspec.structs.replace(this_host(), build="another")
    assert choose_tuning(weights, other, 1, tmp_path).seconds != 77.0
    assert choose_tuning(weights, this_host(), 2, tmp_path).threads == 2
    assert len(list((tmp_path / "tuning").iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"threads": 1}', b"\xff" * 100])
def test_a_damaged_table_is_measured_again(damage: bytes, weights: NativeWeights, tmp_path: Path) -> None:
    expected = choose_tuning(weights, this_host(), 1, tmp_path)
    (file,) = (tmp_path / "tuning").iterdir()
    file.write_bytes(damage)
    again = choose_tuning(weights, this_host(), 1, tmp_path)
    assert [entry.shape for entry in again.shapes] == [entry.shape for entry in expected.shapes]
    assert msgspec.json.decode(file.read_bytes(), type=TuningTable) == again


def test_a_table_of_other_shapes_is_measured_again(weights: NativeWeights, tmp_path: Path) -> None:
    choose_tuning(weights, this_host(), 1, tmp_path)
    (file,) = (tmp_path / "tuning").iterdir()
    whole = msgspec.json.decode(file.read_bytes(), type=TuningTable)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(whole, shapes=whole.shapes[:1])))
    assert len(choose_tuning(weights, this_host(), 1, tmp_path).shapes) == len(whole.shapes)


def test_a_cache_that_cannot_be_written_changes_nothing(weights: NativeWeights, tmp_path: Path) -> None:
    (tmp_path / "tuning").write_text("in the way")
    table = choose_tuning(weights, this_host(), 1, tmp_path)
    assert table.fits(this_host(), 1)


def test_a_compiled_tuning_is_used_on_its_own_machine_only(weights: NativeWeights, tmp_path: Path) -> None:
    own = table_for(weights, this_host(), seconds=55.0)
    compiled = NativeWeights(weights.packed, weights.choice, own)
    assert choose_tuning(compiled, this_host(), 1, tmp_path) is own
    assert choose_tuning(compiled, this_host(), 2, tmp_path).threads == 2
    foreign = table_for(weights, msgspec.structs.replace(this_host(), cpu="Other", kernels="avx1024"))
    table = choose_tuning(NativeWeights(weights.packed, weights.choice, foreign), this_host(), 1, tmp_path)
    assert table.fits(this_host(), 1)


def test_weights_of_another_model_are_refused(model: tuple[ModelConfig, NativeWeights], tmp_path: Path) -> None:
    config, weights = model
    tuning = choose_tuning(weights, this_host(), 1, tmp_path)
    matrices, vectors = dict(weights.packed.matrices), dict(weights.packed.vectors)
    del matrices["layers.1.down"]
    with pytest.raises(ConfigError, match=r"lack layers\.1\.down"):
        build_program(config, NativeWeights(PackedModel(matrices, vectors), WeightChoice.INT8), tuning)
    matrices["layers.1.down"] = weights.packed.matrices["layers.1.qkv"]
    with pytest.raises(ConfigError, match="do not fit the model"):
        build_program(config, NativeWeights(PackedModel(matrices, vectors), WeightChoice.INT8), tuning)
    del vectors["final_norm"]
    with pytest.raises(ConfigError):
        build_program(config, NativeWeights(PackedModel(weights.packed.matrices, vectors), WeightChoice.INT8), tuning)


def test_heads_the_kernels_cannot_run_are_refused_before_anything_is_packed(
    model: tuple[ModelConfig, NativeWeights], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path))
    config = replace(model[0], head_dim=20)
    packed: list[int] = []
    with pytest.raises(ConfigError, match=r"head_dim is 20, .* multiples of 16.*--backend torch") as caught:
        load_weights(checkpoint, config, "auto", 1, lambda done, total: packed.append(done))
    assert caught.value.field == "head_dim"
    assert packed == []
