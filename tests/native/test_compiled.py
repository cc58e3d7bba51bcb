"""A compiled folder gives back what was written to it, bit for bit, or says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.compiled_files import MANIFEST_FILE, WEIGHTS_FILE, is_compiled
from headrace.core.errors import ConfigError
from headrace.native import manifest as manifest_module
from headrace.native.accuracy import Accuracy, MatrixError
from headrace.native.compiled import open_compiled, write_weights
from headrace.native.host import this_host
from headrace.native.manifest import SCHEMA, Manifest, MemoryPlan, Source, SourceFile, read_manifest, write_manifest
from headrace.native.operations import WeightFormat
from headrace.native.packed_model import PackedModel
from headrace.native.program import NativeProgram
from headrace.native.tuning import MatrixShape, default_table
from tests.native.configs import SHAPES, random_matrices, random_vectors
from tests.native.native_run import NativeRun

CONFIG = SHAPES["norms around"]


def packed_model(weight_format: WeightFormat = WeightFormat.INT4) -> PackedModel:
    return PackedModel(random_matrices(CONFIG, weight_format), random_vectors(CONFIG))


def write_folder(folder: Path, packed: PackedModel) -> Manifest:
    folder.mkdir(exist_ok=True)
    amounts: list[int] = []
    written = write_weights(folder, packed, amounts.append)
    assert sum(amounts) == written.num_bytes == (folder / WEIGHTS_FILE).stat().st_size
    manifest = Manifest(
        schema=SCHEMA,
        version="0",
        host=this_host(),
        source=Source("somewhere", "gguf", (SourceFile("a.gguf", 3, "00"),)),
        dtype="int4",
        model=CONFIG,
        weights_bytes=written.num_bytes,
        weights_sha256=written.sha256,
        matrices=written.matrices,
        vectors=written.vectors,
        memory=MemoryPlan(1, 2, ()),
        tuning=default_table(map(MatrixShape.of, packed.multiplied.values()), this_host(), 1),
        accuracy=Accuracy(
            num_tokens=9,
            perplexity=2.0,
            reference_perplexity=1.0,
            top1_agreement=0.5,
            num_greedy=4,
            num_equal_greedy=1,
            matrices=(MatrixError("embedding", 0.25),),
        ),
    )
    write_manifest(folder, manifest)
    return manifest


@pytest.fixture(name="folder")
def compiled_folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "compiled", packed_model())
    return tmp_path / "compiled"


@pytest.mark.parametrize("weight_format", [WeightFormat.F32, WeightFormat.BF16, WeightFormat.INT8, WeightFormat.INT4])
def test_what_is_read_back_computes_the_same_bits(weight_format: WeightFormat, tmp_path: Path) -> None:
    packed = packed_model(weight_format)
    written = write_folder(tmp_path, packed)
    compiled = open_compiled(tmp_path)
    assert is_compiled(tmp_path)
    assert compiled.manifest == written
    assert compiled.packed.formats == packed.formats
    for name, matrix in packed.matrices.items():
        again = compiled.packed.matrices[name]
        assert np.array_equal(again.data, matrix.data)
        assert again.data.ctypes.data % 64 == 0
        assert not again.data.flags.writeable
    chunks = {0: list(range(30)), 1: [4, 2]}
    direct = NativeRun(NativeProgram.build(CONFIG, packed.matrices, packed.vectors)).step(chunks)
    mapped = NativeRun(NativeProgram.build(compiled.manifest.model, compiled.packed.matrices, compiled.packed.vectors))
    for seq_id, logits in mapped.step(chunks).items():
        assert np.array_equal(logits, direct[seq_id])


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / MANIFEST_FILE
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another schema": (lambda d: d.update(schema="headrace.compiled/9"), "schema"),
    "no schema": (lambda d: d.pop("schema"), "schema"),
    "another layout": (lambda d: d["host"].update(layout=99), "host.layout"),
    "no model": (lambda d: d.pop("model"), "model"),
    "a wrong kind": (lambda d: d.update(weights_bytes="many"), "weights_bytes"),
    "an impossible model": (lambda d: d["model"].update(vocab_size=-1), "vocab_size"),
    "a longer file": (lambda d: d.update(weights_bytes=d["weights_bytes"] + 1), "weights_bytes"),
    "a shorter file": (lambda d: d.update(weights_bytes=1024), "offset"),
    "no rows": (lambda d: d["matrices"][1].update(num_rows=0), "num_rows"),
    "endless columns": (lambda d: d["matrices"][1].update(num_columns=2**60), "num_columns"),
    "other columns": (lambda d: d["matrices"][1].update(num_columns=4000), "num_bytes"),
    "another format": (lambda d: d["matrices"][1].update(format=0), "num_bytes"),
    "no such format": (lambda d: d["matrices"][1].update(format=17), "format"),
    "beyond the end": (lambda d: d["matrices"][1].update(offset=2**50), "offset"),
    "before the start": (lambda d: d["matrices"][1].update(offset=-64), "offset"),
    "between two lines": (lambda d: d["matrices"][1].update(offset=d["matrices"][1]["offset"] + 4), "offset"),
    "on top of another": (lambda d: d["matrices"][1].update(offset=d["matrices"][0]["offset"]), "offset"),
    "one name twice": (lambda d: d["vectors"][0].update(name=d["vectors"][1]["name"]), "twice"),
    "an empty vector": (lambda d: d["vectors"][0].update(size=0), "size"),
    "a vector beyond the end": (lambda d: d["vectors"][-1].update(size=10_000), "offset"),
    "three row classes": (lambda d: d["tuning"]["shapes"][0]["classes"].pop(), "classes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_folder_that_lies_is_refused_by_field(lie: str, folder: Path) -> None:
    change, field = LIES[lie]
    edit(folder, change)
    with pytest.raises(ConfigError, match=field) as caught:
        open_compiled(folder)
    assert str(folder) in caught.value.message or field == "vocab_size"


def test_a_truncated_folder_is_refused_wherever_it_ends(folder: Path) -> None:
    text = (folder / MANIFEST_FILE).read_bytes()
    for end in range(0, len(text) - 2, 97):
        (folder / MANIFEST_FILE).write_bytes(text[:end])
        with pytest.raises(ConfigError, match=MANIFEST_FILE):
            open_compiled(folder)
    (folder / MANIFEST_FILE).write_bytes(text)
    weights = (folder / WEIGHTS_FILE).read_bytes()
    for data in (weights[:-1], weights[:64], b"", weights + b"\0"):
        (folder / WEIGHTS_FILE).write_bytes(data)
        with pytest.raises(ConfigError, match="weights_bytes"):
            open_compiled(folder)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(ConfigError, match=WEIGHTS_FILE):
        open_compiled(folder)
    assert not is_compiled(folder)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_a_manifest_is_an_error_or_harmless(folder: Path, data: st.DataObject) -> None:
    path = folder / MANIFEST_FILE
    original = path.read_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        compiled = open_compiled(folder)
        NativeProgram.build(compiled.manifest.model, compiled.packed.matrices, compiled.packed.vectors)
    except (ConfigError, ValueError, KeyError):  # the last two are what weights of another model give
        pass
    finally:
        path.write_bytes(original)


def test_a_manifest_is_not_read_without_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(ConfigError, match="size is above 100 bytes"):
        read_manifest(folder)
    monkeypatch.undo()
    (folder / MANIFEST_FILE).write_bytes(b"[" * 1_000_000)
    with pytest.raises(ConfigError, match=MANIFEST_FILE):
        read_manifest(folder)
