"""``manifest.json`` of a compiled folder: what is in it, where it came from and how it was made.

Every number in it is compared with the files beside it before it is used: a folder that was cut short, edited or
made by another version ends in a ``ConfigError`` that names the field. Does not know how the weights are mapped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from headrace.core.compiled_files import MANIFEST_FILE
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.native import _native
from headrace.native.accuracy import Accuracy
from headrace.native.host import Host
from headrace.native.operations import ALIGNMENT, WeightFormat
from headrace.native.tuning import TuningTable

SCHEMA = "headrace.compiled/1"

MAX_MANIFEST_BYTES = 16 << 20
_MAX_DIM = 1 << 26
Kind = TypeVar("Kind")

_AGAIN = "compile the model again: headrace compile MODEL -o DIR --force"


class SourceFile(msgspec.Struct, frozen=True):
    name: str
    num_bytes: int
    sha256: str


class Source(msgspec.Struct, frozen=True):
    """What was compiled: the reference as it was given, and the weight files it led to."""

    reference: str
    format: Literal["gguf", "safetensors"]
    files: tuple[SourceFile, ...]


class StoredMatrix(msgspec.Struct, frozen=True):
    """A packed matrix: bytes ``[offset, offset + num_bytes)`` of the weights file."""

    name: str
    format: WeightFormat
    num_rows: int
    num_columns: int
    offset: int
    num_bytes: int


class StoredVector(msgspec.Struct, frozen=True):
    """A float32 vector: ``4 * size`` bytes from ``offset`` on."""

    name: str
    size: int
    offset: int


class PlannedBuffer(msgspec.Struct, frozen=True):
    """Where an intermediate value lies, in bytes per token of a step."""

    name: str
    offset: int
    row_bytes: int


class MemoryPlan(msgspec.Struct, frozen=True):
    """The arena, per token of a step, and the KV cache, per token of context in half precision."""

    arena_row_bytes: int
    kv_token_bytes: int
    buffers: tuple[PlannedBuffer, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``dtype`` is what ``--dtype`` asked for. ``accuracy`` is ``None`` where it was not checked."""

    schema: str
    version: str
    host: Host
    source: Source
    dtype: str
    model: ModelConfig
    weights_bytes: int
    weights_sha256: str
    matrices: tuple[StoredMatrix, ...]
    vectors: tuple[StoredVector, ...]
    memory: MemoryPlan
    tuning: TuningTable
    accuracy: Accuracy | None = None


class _SchemaOnly(msgspec.Struct):
    schema: str = ""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (folder / MANIFEST_FILE).write_bytes(text + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """Read and check all that can be checked without the weights. Raises ``ConfigError`` naming the field."""
    path = folder / MANIFEST_FILE
    data = _read_bounded(path)
    schema = _decode(path, data, _SchemaOnly).schema
    if schema != SCHEMA:
        raise _error(path, "schema", f"is {schema[:60]!r}, but this version reads {SCHEMA!r}")
    manifest = _decode(path, data, Manifest)
    if manifest.host.layout != _native.layout_version():
        raise _error(
            path,
            "host.layout",
            f"is {manifest.host.layout}: weights were packed in another order than version {_native.layout_version()}, "
            "which this build reads",
        )
    _check_extents(path, manifest)
    return manifest


def _read_bounded(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", MANIFEST_FILE) from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise _error(path, "size", f"is above {MAX_MANIFEST_BYTES} bytes")
    return data


def _decode(path: Path, data: bytes, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}; {_AGAIN}", MANIFEST_FILE) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply; {_AGAIN}", MANIFEST_FILE) from error


def _check_extents(path: Path, manifest: Manifest) -> None:
    """Every part lies inside the weights file, aligned, with the size its shape implies, apart from the others."""
    end, names = 0, set()
    parts = sorted(_extents(path, manifest), key=lambda part: part[1])
    for name, start, stop in parts:
        if name in names:
            raise _error(path, name, "occurs twice")
        if start % ALIGNMENT or start < end:
            raise _error(path, f"{name}.offset", f"is {start}, which is not aligned to {ALIGNMENT} or overlaps")
        if stop > manifest.weights_bytes:
            raise _error(path, f"{name}.offset", f"leads to byte {stop} of {manifest.weights_bytes}")
        names.add(name)
        end = stop


def _extents(path: Path, manifest: Manifest) -> list[tuple[str, int, int]]:
    extents = []
    for matrix in manifest.matrices:
        for field, value in (("num_rows", matrix.num_rows), ("num_columns", matrix.num_columns)):
            if not 1 <= value <= _MAX_DIM:
                raise _error(path, f"{matrix.name}.{field}", f"is {value} but must be between 1 and {_MAX_DIM}")
        size = _native.packed_bytes(matrix.format, matrix.num_rows, matrix.num_columns)
        if matrix.num_bytes != size:
            raise _error(path, f"{matrix.name}.num_bytes", f"is {matrix.num_bytes}, but its shape takes {size}")
        extents.append((matrix.name, matrix.offset, matrix.offset + size))
    for vector in manifest.vectors:
        if not 1 <= vector.size <= _MAX_DIM:
            raise _error(path, f"{vector.name}.size", f"is {vector.size} but must be between 1 and {_MAX_DIM}")
        extents.append((vector.name, vector.offset, vector.offset + 4 * vector.size))
    return extents


def _error(path: Path, field: str, problem: str) -> ConfigError:
    return ConfigError(f"{path}: {field} {problem}; {_AGAIN}", field)
