"""Weights of a checkpoint as torch tensors, under the names of ``headrace.model.weight_layout``.

Norm weights stay float32 and include the family's offset.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.model_config import ModelConfig
from headrace.model.source import CheckpointSource
from headrace.model.weight_layout import StoredTensor, Weight, WeightKind, list_weights

Float32Array = NDArray[np.float32]

Progress = Callable[[int, int], None]
"""Called with the number of parameters loaded so far and in all."""


def load_weights(
    checkpoint: CheckpointSource,
    config: ModelConfig,
    dtype: torch.dtype,
    progress: Progress,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """All weights, dequantised to ``dtype`` on ``device``; norms in float32.

    Takes one float32 copy of the largest weight besides the result. Raises ``ConfigError`` naming tensors
    that are missing, unknown or of another shape than ``config`` implies.
    """
    wanted = list_weights(checkpoint, config)
    num_total = sum(weight.size for weight in wanted)
    num_loaded = 0
    weights = {}
    for weight in wanted:
        values = torch.from_numpy(_assemble(checkpoint, weight))
        if weight.kind is WeightKind.NORM:
            values += config.norm_weight_offset
        kept = dtype if weight.kind is WeightKind.LINEAR else torch.float32
        weights[weight.name] = values.to(device=device, dtype=kept)
        num_loaded += weight.size
        progress(num_loaded, num_total)
    return weights


def _assemble(checkpoint: CheckpointSource, weight: Weight) -> Float32Array:
    """The parts one below the other, heads in our order, in memory of our own."""
    arrays = [_read(checkpoint, part) for part in weight.parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _read(checkpoint: CheckpointSource, part: StoredTensor) -> Float32Array:
    values = checkpoint.tensors[part.name].to_float32()
    return _unpermute(values, part.num_permuted_heads) if part.num_permuted_heads else values


def _unpermute(values: Float32Array, num_heads: int) -> Float32Array:
    """Rows of each head from pairs ``(2i, 2i + 1)`` to pairs ``(i, i + head_dim / 2)``."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
