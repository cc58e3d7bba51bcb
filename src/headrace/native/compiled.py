"""A model compiled into a folder: packed weights, ready to be mapped or copied, beside a manifest.

The layout of packed weights is the same for every instruction set, so a folder made on one CPU runs on any other;
only its tuning was measured for the CPU that made it. Owns reading and writing of the weights file; the folder as a
whole is put together elsewhere.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.core.compiled_files import WEIGHTS_FILE
from headrace.core.errors import ConfigError
from headrace.native.manifest import Manifest, StoredMatrix, StoredVector, read_manifest
from headrace.native.operations import ALIGNMENT
from headrace.native.packed_model import PackedModel
from headrace.native.packing import PackedWeight

ByteArray = NDArray[np.uint8]
Progress = Callable[[int], None]
"""Called with the number of bytes written since the last call."""

_BYTES_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class CompiledModel:
    """An opened folder; its file stays mapped as long as a weight is referenced."""

    folder: Path
    manifest: Manifest
    packed: PackedModel


def open_compiled(folder: Path) -> CompiledModel:
    """Map a compiled folder; costs milliseconds, whatever its size. Raises ``ConfigError`` naming what is wrong."""
    manifest = read_manifest(folder)
    data = _map(folder / WEIGHTS_FILE, manifest.weights_bytes)
    matrices = {
        m.name: PackedWeight(m.format, m.num_rows, m.num_columns, data[m.offset : m.offset + m.num_bytes])
        for m in manifest.matrices
    }
    vectors = {v.name: data[v.offset : v.offset + 4 * v.size].view(np.float32) for v in manifest.vectors}
    return CompiledModel(folder, manifest, PackedModel(matrices, vectors))


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """Where everything ended up in the weights file."""

    num_bytes: int
    sha256: str
    matrices: tuple[StoredMatrix, ...]
    vectors: tuple[StoredVector, ...]


def write_weights(folder: Path, packed: PackedModel, progress: Progress) -> WrittenWeights:
    """Write the weights file. Raises ``OSError``."""
    matrices, vectors, end = [], [], 0
    for name, matrix in packed.matrices.items():
        offset = _aligned(end)
        end = offset + matrix.data.nbytes
        matrices.append(
            StoredMatrix(name, matrix.format, matrix.num_rows, matrix.num_columns, offset, matrix.data.nbytes)
        )
    for name, values in packed.vectors.items():
        offset = _aligned(end)
        end = offset + 4 * values.size
        vectors.append(StoredVector(name, values.size, offset))
    digest = hashlib.sha256()
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for piece in _pieces(packed):
            file.write(piece)
            digest.update(piece)
            progress(len(piece))
    return WrittenWeights(end, digest.hexdigest(), tuple(matrices), tuple(vectors))


def _pieces(packed: PackedModel) -> Iterator[memoryview]:
    """The file's bytes in order, filled up to alignment before each part."""
    written = 0
    arrays = [*(m.data for m in packed.matrices.values()), *packed.vectors.values()]
    for array in arrays:
        padding = _aligned(written) - written
        if padding:
            yield memoryview(bytes(padding))
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for start in range(0, len(data), _BYTES_AT_ONCE):
            yield data[start : start + _BYTES_AT_ONCE]
        written += padding + len(data)


def _map(path: Path, num_bytes: int) -> ByteArray:
    try:
        size = path.stat().st_size
        if size != num_bytes or size == 0:
            raise ConfigError(
                f"{path} has {size} bytes, but weights_bytes of the manifest is {num_bytes}; the folder is damaged or "
                "incomplete, compile the model again",
                "weights_bytes",
            )
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            mapped.madvise(mmap.MADV_WILLNEED)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", WEIGHTS_FILE) from error
    return np.frombuffer(mapped, np.uint8)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
