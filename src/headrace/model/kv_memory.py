"""The memory that holds keys and values, block by block.

Knows slots and block ids, not sequences: who owns a block is ``headrace.cache``'s business.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.core.model_config import ModelConfig


class PagedKVMemory:
    """Keys and values of ``num_blocks`` blocks of ``block_size`` tokens, for every layer.

    ``keys[layer]`` and ``values[layer]`` are ``[num_blocks, block_size, num_kv_heads, head_dim]``. All of it
    is taken, and touched, here, so that too little memory shows before the first request.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        memory = torch.zeros(shape, dtype=dtype, device=device)
        self.keys: list[Tensor] = list(memory[0].unbind())
        self.values: list[Tensor] = list(memory[1].unbind())

    @property
    def dtype(self) -> torch.dtype:
        return self.keys[0].dtype

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put ``keys`` and ``values`` ``[T, num_kv_heads, head_dim]`` into ``slots`` ``[T]`` (int64)."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values in ``slots`` ``[N]``, each ``[N, num_kv_heads, head_dim]``."""
        keys = self.keys[layer].flatten(0, 1).index_select(0, slots)
        values = self.values[layer].flatten(0, 1).index_select(0, slots)
        return keys, values
