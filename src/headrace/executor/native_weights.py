"""Packs a checkpoint's weights for the native program, a few matrices at a time.

Owns the choice of format: what the file stores in a layout the kernels can hold exactly stays as it is, the
rest goes to the format asked for. Needs memory for a float32 matrix per thread beside the result.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.tensor_type import TensorType
from headrace.checkpoint.tensor_view import TensorView
from headrace.core.model_config import ModelConfig
from headrace.model.weight_layout import StoredTensor, Weight, WeightKind, list_weights
from headrace.native.operations import WeightFormat
from headrace.native.packed_model import PackedModel
from headrace.native.packing import PANEL_ROWS, PackedWeight, StoredFormat, packed_bytes

Float32Array = NDArray[np.float32]
Scalar = TypeVar("Scalar", bound=np.generic)

Progress = Callable[[int, int], None]
"""Called with the number of parameters packed so far and in all."""

_ROWS_AT_ONCE = 64 * PANEL_ROWS

_STORED = {
    TensorType.Q4_0: StoredFormat.Q4_0,
    TensorType.Q4_1: StoredFormat.Q4_1,
    TensorType.Q8_0: StoredFormat.Q8_0,
    TensorType.Q4_K: StoredFormat.Q4_K,
}

_AUTO = {
    TensorType.F32: WeightFormat.F32,
    TensorType.F16: WeightFormat.F16,
    TensorType.BF16: WeightFormat.BF16,
}


class WeightChoice(enum.Enum):
    """What ``--dtype`` asks for; ``AUTO`` keeps as much of the file as the kernels can hold."""

    AUTO = None
    F32 = WeightFormat.F32
    F16 = WeightFormat.F16
    BF16 = WeightFormat.BF16
    INT8 = WeightFormat.INT8
    INT4 = WeightFormat.INT4


_CHOICES = {
    "auto": WeightChoice.AUTO,
    "float32": WeightChoice.F32,
    "f32": WeightChoice.F32,
    "float16": WeightChoice.F16,
    "f16": WeightChoice.F16,
    "bfloat16": WeightChoice.BF16,
    "bf16": WeightChoice.BF16,
    "int8": WeightChoice.INT8,
    "int4": WeightChoice.INT4,
}


def weight_choice(dtype: str) -> WeightChoice:
    """What a ``dtype`` setting asks for."""
    return _CHOICES[dtype]


def pack_model(
    checkpoint: Checkpoint, config: ModelConfig, choice: WeightChoice, threads: int, progress: Progress
) -> PackedModel:
    """Pack every weight, ``threads`` of them at a time.

    Raises ``ConfigError`` for a file that does not have what ``config`` implies.
    """
    wanted = list_weights(checkpoint, config)
    num_total = sum(weight.size for weight in wanted)
    num_packed = sum(weight.size for weight in wanted if _is_vector(weight))
    vectors = {weight.name: _vector(checkpoint, config, weight) for weight in wanted if _is_vector(weight)}
    sources = [_MatrixSource.of(checkpoint, weight, choice) for weight in wanted if not _is_vector(weight)]
    matrices = PackedWeight.side_by_side([source.shape for source in sources])
    with ThreadPoolExecutor(threads, "pack") as pool:
        for source, _ in zip(sources, pool.map(_MatrixSource.pack, sources, matrices), strict=True):
            num_packed += source.weight.size
            progress(num_packed, num_total)
    return PackedModel({s.weight.name: m for s, m in zip(sources, matrices, strict=True)}, vectors)


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """What a checkpoint's weights will be once they are packed; ``scratch_bytes`` is needed beside them meanwhile."""

    formats: Mapping[str, WeightFormat]
    vector_names: frozenset[str]
    num_bytes: int
    scratch_bytes: int


def weight_facts(checkpoint: Checkpoint, config: ModelConfig, choice: WeightChoice, threads: int) -> WeightFacts:
    """What ``pack_model`` would make, from the headers of the files alone. Raises ``ConfigError`` as it does."""
    wanted = list_weights(checkpoint, config)
    sources = [_MatrixSource.of(checkpoint, weight, choice) for weight in wanted if not _is_vector(weight)]
    vectors = [weight for weight in wanted if _is_vector(weight)]
    widest = max(source.shape[2] for source in sources)
    return WeightFacts(
        formats={source.weight.name: source.format for source in sources},
        vector_names=frozenset(weight.name for weight in vectors),
        num_bytes=sum(packed_bytes(*source.shape) for source in sources) + sum(4 * weight.size for weight in vectors),
        scratch_bytes=2 * threads * _ROWS_AT_ONCE * widest * 4,
    )


def _is_vector(weight: Weight) -> bool:
    return len(weight.parts[0].shape) == 1


def _vector(checkpoint: Checkpoint, config: ModelConfig, weight: Weight) -> Float32Array:
    parts = [_in_our_order(checkpoint.tensors[p.name].to_float32(), p) for p in weight.parts]
    values = np.concatenate(parts)
    return values + np.float32(config.norm_weight_offset) if weight.kind is WeightKind.NORM else values


@dataclass(frozen=True, slots=True)
class _MatrixSource:
    """The stored parts of a matrix, with the format they are packed into; ``stored`` if they are taken as they are."""

    weight: Weight
    views: list[TensorView]
    format: WeightFormat
    stored: StoredFormat | None

    @classmethod
    def of(cls, checkpoint: Checkpoint, weight: Weight, choice: WeightChoice) -> _MatrixSource:
        views = [checkpoint.tensors[part.name] for part in weight.parts]
        stored = _exact_format(views, choice)
        return cls(weight, views, _format(views, choice) if stored is None else stored.packed, stored)

    @property
    def shape(self) -> tuple[WeightFormat, int, int]:
        """Format, rows and columns."""
        parts = self.weight.parts
        return self.format, sum(part.shape[0] for part in parts), parts[0].shape[1]

    def pack(self, packed: PackedWeight) -> None:
        parts = self.weight.parts
        if self.stored is None:
            for row, values in _row_batches(self.views, parts):
                packed.put_floats(row, values)
            return
        blocks = [_in_our_order(v.data.reshape(v.shape[0], -1), p) for v, p in zip(self.views, parts, strict=True)]
        packed.put_stored(0, packed.num_rows, self.stored, np.concatenate(blocks).reshape(-1))


def _exact_format(views: list[TensorView], choice: WeightChoice) -> StoredFormat | None:
    """The stored layout that all parts share, if it may be taken over as it is."""
    layouts = {_STORED.get(view.dtype) for view in views}
    if len(layouts) != 1:
        return None
    layout = layouts.pop()
    if layout is None or (choice.value is not None and choice.value.label != layout.packed.label):
        return None
    return layout


def _format(views: list[TensorView], choice: WeightChoice) -> WeightFormat:
    """The format asked for, else the narrowest that loses least: as stored, or int8 for other block formats."""
    wanted: WeightFormat | None = choice.value
    if wanted is not None:
        return wanted
    return max((_AUTO.get(view.dtype, WeightFormat.INT8) for view in views), default=WeightFormat.F32)


def _row_batches(views: list[TensorView], parts: tuple[StoredTensor, ...]) -> Iterator[tuple[int, Float32Array]]:
    """Rows of all parts one below the other, widened, a bounded number at a time, cut at whole panels."""
    row, kept = 0, np.empty((0, views[0].shape[1]), np.float32)
    for view, part in zip(views, parts, strict=True):
        for values in _part_batches(view, part):
            kept = np.concatenate([kept, values]) if len(kept) else values
            num_whole = len(kept) // PANEL_ROWS * PANEL_ROWS
            if num_whole:
                yield row, kept[:num_whole]
                row, kept = row + num_whole, kept[num_whole:]
    if len(kept):
        yield row, kept


def _part_batches(view: TensorView, part: StoredTensor) -> Iterator[Float32Array]:
    if part.num_permuted_heads:
        yield _in_our_order(view.to_float32(), part)  # query and key projections are small
        return
    for start in range(0, view.shape[0], _ROWS_AT_ONCE):
        yield view.rows(start, min(start + _ROWS_AT_ONCE, view.shape[0])).to_float32()


def _in_our_order(values: NDArray[Scalar], part: StoredTensor) -> NDArray[Scalar]:
    """Rows of each head from pairs ``(2i, 2i + 1)`` to pairs ``(i, i + head_dim / 2)``, where the file has pairs."""
    if not part.num_permuted_heads:
        return values
    pairs = values.reshape(part.num_permuted_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
