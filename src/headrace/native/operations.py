"""The words of a native program: what its operations are and what they work on.

Mirrors ``csrc/program.h``, whose checks are the ones that count; here they are plain data that can be
listed, compared and stored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

GROUP_COLUMNS = 32
"""Columns that share a scale, in quantised weights and activations alike."""

ALIGNMENT = 64
"""Bytes that buffers and packed matrices are aligned to: one cache line, the widest vector."""

BLOCK_SIZE_STEP = 16
"""KV blocks hold a multiple of so many positions, read side by side."""

HEAD_DIM_STEP = 16
"""Attention heads have a multiple of so many dimensions, as many as the widest vector holds."""


class WeightFormat(enum.IntEnum):
    """How a matrix is packed; the layouts are described in ``csrc/packed_matrix.h``."""

    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3
    INT4 = 4
    INT4_WIDE = 5

    @property
    def is_quantized(self) -> bool:
        return self >= WeightFormat.INT8

    @property
    def label(self) -> str:
        names = {WeightFormat.F32: "float32", WeightFormat.F16: "float16", WeightFormat.BF16: "bfloat16"}
        return names.get(self, "int8" if self is WeightFormat.INT8 else "int4")


class KvFormat(enum.IntEnum):
    """How keys and values are kept."""

    F32 = 0
    F16 = 1
    INT8 = 2
    BF16 = 3

    @property
    def label(self) -> str:
        names = {KvFormat.F32: "float32", KvFormat.F16: "float16", KvFormat.BF16: "bfloat16", KvFormat.INT8: "int8"}
        return names[self]


class OpKind(enum.IntEnum):
    """What an operation computes; each is described in ``csrc/program.h``."""

    EMBED = 0
    NORM = 1
    NORM_ADD = 2
    QUANTIZE = 3
    MATMUL = 4
    ROTATE_STORE = 5
    ATTENTION = 6
    GATE = 7
    SCALE = 8


class Epilogue(enum.IntEnum):
    """What a matrix product does with its result: replace the output, or add to it."""

    STORE = 0
    ADD = 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value per token: floats, or int8 in groups of 32 with a scale and a scaled sum each."""

    name: str
    width: int
    is_quantized: bool = False

    @property
    def row_bytes(self) -> int:
        if not self.is_quantized:
            return 4 * self.width
        return -(-self.width // GROUP_COLUMNS) * (GROUP_COLUMNS + 2 * 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a program. Buffers, matrices and vectors are named; ``None`` where a kind has no use for one."""

    kind: OpKind
    output: str
    input: str | None = None
    matrix: str | None = None
    vector: str | None = None
    second_vector: str | None = None
    layer: int = -1
    rope: int = -1
    window: int = 0
    epilogue: Epilogue = Epilogue.STORE
    activation: int = 0
    norm_whole: bool = False
    scale: float = 1.0
    eps: float = 0.0
    soft_cap: float = 0.0
