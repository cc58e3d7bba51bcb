"""One stored tensor as a window on the mapped file: nothing is read or copied until it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.checkpoint.quantization import ByteArray, Float32Array, convertible_types, dequantize
from headrace.checkpoint.tensor_type import TensorType
from headrace.core.errors import ConfigError

__all__ = ["TensorType", "TensorView"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """A tensor as it lies in the file.

    ``shape`` is in row-major order (the last dimension is contiguous), whatever the file's own habit.
    ``data`` is a read-only view of the stored bytes, which exactly fill the shape; it keeps the file mapped.
    """

    name: str
    shape: tuple[int, ...]
    dtype: TensorType
    data: ByteArray  # [num_bytes]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    @property
    def raw(self) -> memoryview:
        """The stored bytes, read-only, without a copy."""
        return self.data.data

    def rows(self, start: int, stop: int) -> TensorView:
        """View of rows ``[start, stop)`` along the first of at least two dimensions; copies nothing.

        Lets a big table be dequantised piece by piece.
        """
        if len(self.shape) < 2 or not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows [{start}, {stop}) of {self.name} with shape {list(self.shape)}")
        row_bytes = self.num_bytes // self.shape[0]
        part = self.data[start * row_bytes : stop * row_bytes]
        return TensorView(self.name, (stop - start, *self.shape[1:]), self.dtype, part)

    def to_float32(self) -> Float32Array:
        """Fresh, writable float32 array of ``shape``, dequantised.

        Costs ``4 * num_elements`` bytes. Raises ``ConfigError`` for a type there is no conversion for.
        """
        if self.dtype not in convertible_types():
            known = ", ".join(sorted(dtype.label for dtype in convertible_types()))
            raise ConfigError(
                f"tensor {self.name} is stored as {self.dtype.label}, which cannot be converted; "
                f"use a copy of the model stored as one of {known}",
                self.name,
            )
        return dequantize(self.data, self.dtype).reshape(self.shape)
