"""What every model file must satisfy before a byte of it is believed: counts, shapes, extents.

Owns the limits that both formats share and the one form of their errors. A file can claim anything; each
claim is compared with the size of the file before it is used as a size, so a lie costs neither memory nor
time.
"""

from __future__ import annotations

import mmap
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.checkpoint.file_names import shown
from headrace.checkpoint.quantization import ByteArray
from headrace.checkpoint.tensor_type import TensorType
from headrace.checkpoint.tensor_view import TensorView
from headrace.core.errors import ConfigError

MAX_TENSORS = 1 << 16
MAX_ELEMENTS = 1 << 40
MAX_NAME_BYTES = 1024

_DAMAGED = "the file is damaged or incomplete, fetch it again"


class Extent(NamedTuple):
    """Where a tensor lies: bytes ``[start, stop)`` of the data section."""

    name: str
    shape: tuple[int, ...]
    dtype: TensorType
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FileChecks:
    """Judges the claims of one file; every error names the file and the field."""

    path: Path

    def error(self, field: str, problem: str, remedy: str = _DAMAGED) -> ConfigError:
        """The error for ``field``, whose ``problem`` reads on from its name ("is 3 but ...")."""
        return ConfigError(f"{self.path}: {field} {problem}; {remedy}", field)

    def in_range(self, field: str, value: int, low: int, high: int) -> int:
        """``value`` if it is in ``[low, high]``."""
        if not low <= value <= high:
            raise self.error(field, f"is {value} but must be between {low} and {high}")
        return value

    def new_name(self, field: str, name: str, known: Container[str]) -> str:
        """``name`` if it is printable text that is not ``known`` yet; the rest of us may then show it freely."""
        if not name or len(name) > MAX_NAME_BYTES or not name.isprintable():
            raise self.error(field, f"must be 1 to {MAX_NAME_BYTES} printable characters; got '{shown(name)}'")
        if name in known:
            raise self.error(field, f"occurs twice: '{shown(name)}'")
        return name

    def num_bytes(self, name: str, shape: Sequence[int], dtype: TensorType) -> int:
        """Bytes a tensor of ``shape`` takes, from dimensions that may be any integers."""
        field = f"{name}.shape"
        num_elements = 1
        for dim in shape:
            num_elements *= self.in_range(field, dim, 1, MAX_ELEMENTS)
            self.in_range(f"{name}.num_elements", num_elements, 1, MAX_ELEMENTS)
        row = shape[-1] if shape else 1
        if row % dtype.block_size:
            raise self.error(
                field, f"has rows of {row} but {dtype.label} stores whole blocks of {dtype.block_size} elements"
            )
        return dtype.num_bytes(num_elements)

    def views(self, data: ByteArray, extents: Sequence[Extent]) -> dict[str, TensorView]:
        """Views of the tensors in the data section, which must all lie inside it and apart from each other."""
        end_of_previous = 0
        previous = ""
        for extent in sorted(extents, key=lambda extent: extent.start):
            if extent.stop > len(data):
                raise self.error(
                    f"{extent.name}.offset",
                    f"puts bytes [{extent.start}, {extent.stop}) outside the {len(data)} bytes of tensor data",
                )
            if extent.start < end_of_previous:
                raise self.error(f"{extent.name}.offset", f"overlaps tensor {previous}")
            end_of_previous, previous = extent.stop, extent.name
        return {e.name: TensorView(e.name, e.shape, e.dtype, data[e.start : e.stop]) for e in extents}


def map_file(path: Path) -> ByteArray:
    """Read-only bytes of a regular, non-empty file, mapped, not read; unmapped with the last view of it."""
    checks = FileChecks(path)
    try:
        if not path.is_file():  # a pipe or device would block or never end
            raise checks.error("file", "is not a regular file", "give the path of a model file")
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise checks.error("file", "is empty")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", "file") from error
    return np.frombuffer(mapped, np.uint8)
