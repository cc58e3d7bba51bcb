"""What this room needs of a checkpoint, whatever its file format: metadata and named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TensorSource(Protocol):
    """One stored tensor; shapes are in row-major order, ``[rows, columns]`` for a matrix."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def to_float32(self) -> NDArray[np.float32]:
        """Fresh, writable values in C order, dequantised."""
        ...


class CheckpointSource(Protocol):
    """An opened checkpoint.

    ``metadata`` is a parsed ``config.json`` or a GGUF file's key-values (arrays of numbers as NumPy arrays),
    ``generation_config`` a parsed ``generation_config.json`` or empty.
    """

    @property
    def format(self) -> str:
        """``"safetensors"`` or ``"gguf"``."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]: ...

    @property
    def generation_config(self) -> Mapping[str, object]: ...

    @property
    def tensors(self) -> Mapping[str, TensorSource]: ...
