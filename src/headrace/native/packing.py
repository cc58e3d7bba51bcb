"""Weights in the layout the kernels read, made from stored tensors a few rows at a time.

What a file stores in a layout the kernels can hold is taken over bit for bit; the rest is widened to float32
and packed from there. Knows no model and no file format beyond the four block layouts it takes as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.native import _native
from headrace.native.operations import WeightFormat
from headrace.native.weight_memory import side_by_side

ByteArray = NDArray[np.uint8]
Float32Array = NDArray[np.float32]

PANEL_ROWS = 16
"""Rows that are interleaved; rows are packed from multiples of this on."""


class StoredFormat(enum.IntEnum):
    """Block layouts of GGUF files that are packed without being widened."""

    Q4_0 = 0
    Q4_1 = 1
    Q8_0 = 2
    Q4_K = 3

    @property
    def packed(self) -> WeightFormat:
        return _PACKED_AS[self]


_PACKED_AS = {
    StoredFormat.Q4_0: WeightFormat.INT4,
    StoredFormat.Q4_1: WeightFormat.INT4,
    StoredFormat.Q8_0: WeightFormat.INT8,
    StoredFormat.Q4_K: WeightFormat.INT4_WIDE,
}


def packed_bytes(weight_format: WeightFormat, num_rows: int, num_columns: int) -> int:
    """Bytes that a packed matrix of this shape takes."""
    return _native.packed_bytes(weight_format, num_rows, num_columns)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A matrix ``[num_rows, num_columns]`` as the kernels read it; ``data`` is aligned to 64 bytes."""

    format: WeightFormat
    num_rows: int
    num_columns: int
    data: ByteArray

    @classmethod
    def empty(cls, weight_format: WeightFormat, num_rows: int, num_columns: int) -> PackedWeight:
        """All zeros, in pages of its own, to be filled row by row."""
        return cls.side_by_side([(weight_format, num_rows, num_columns)])[0]

    @classmethod
    def side_by_side(cls, shapes: Sequence[tuple[WeightFormat, int, int]]) -> list[PackedWeight]:
        """All zeros, in one stretch of memory, in the order in which products should read them."""
        memory = side_by_side([_native.packed_bytes(*shape) for shape in shapes])
        return [cls(*shape, data) for shape, data in zip(shapes, memory, strict=True)]

    def put_floats(self, row_begin: int, values: Float32Array) -> None:
        """Pack ``values`` ``[count, num_columns]`` as rows ``[row_begin, row_begin + count)``."""
        _native.pack_floats(np.ascontiguousarray(values, np.float32), self.format, self.num_rows, row_begin, self.data)

    def put_stored(self, row_begin: int, count: int, stored: StoredFormat, blocks: ByteArray) -> None:
        """Take over ``count`` rows of stored ``blocks``."""
        assert stored.packed is self.format
        _native.pack_stored(
            np.ascontiguousarray(blocks), stored, self.num_rows, self.num_columns, row_begin, count, self.data
        )

    def first_rows(self, num_rows: int) -> PackedWeight:
        """The first ``num_rows`` as a matrix of its own, in the same memory; all of them or a multiple of 16."""
        assert num_rows == self.num_rows or num_rows % PANEL_ROWS == 0
        size = _native.packed_bytes(self.format, num_rows, self.num_columns)
        return PackedWeight(self.format, num_rows, self.num_columns, self.data[:size])

    def row(self, index: int) -> Float32Array:
        """One row, widened to float32."""
        values = np.empty(self.num_columns, np.float32)
        _native.unpack_row(self.data, self.format, self.num_rows, index, values)
        return values
