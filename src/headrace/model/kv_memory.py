"""The memory that holds keys and values, block by block.

Knows slots and block ids, not sequences: who owns a block is ``headrace.cache``'s business.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
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
        self._contents = memory.view(torch.uint8).flatten(3)  # [2, num_layers, num_blocks, bytes of a layer's block]
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

    # -- whole blocks -------------------------------------------------------------------------------

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's keys and values in all layers."""
        return self._contents.numel() // self.num_blocks

    def host_arena(self, num_slots: int) -> NDArray[np.uint8]:
        """Host memory for the content of so many blocks, ``[num_slots, block_bytes]``; pinned beside a GPU."""
        arena = torch.empty((num_slots, self.block_bytes), dtype=torch.uint8, pin_memory=self._contents.is_cuda)
        contents: NDArray[np.uint8] = arena.numpy()
        return contents

    def copy_out(self, block_ids: NDArray[np.int32], contents: NDArray[np.uint8], rows: NDArray[np.int32]) -> None:
        """Copy the content of block ``block_ids[i]`` to ``contents[rows[i]]``."""
        gathered = self._contents[:, :, self._index(block_ids)].movedim(2, 0).flatten(1)  # [N, block_bytes]
        host = torch.from_numpy(contents)
        for row, content in zip(rows.tolist(), gathered.unbind(), strict=True):
            host[row].copy_(content, non_blocking=True)
        self._finish_copies()

    def copy_in(self, block_ids: NDArray[np.int32], contents: NDArray[np.uint8], rows: NDArray[np.int32]) -> None:
        """Copy ``contents[rows[i]]`` to block ``block_ids[i]``."""
        host = torch.from_numpy(contents)
        gathered = torch.empty((len(rows), self.block_bytes), dtype=torch.uint8, device=self._contents.device)
        for row, content in zip(rows.tolist(), gathered.unbind(), strict=True):
            content.copy_(host[row], non_blocking=True)
        num_layers = self._contents.shape[1]
        self._contents[:, :, self._index(block_ids)] = gathered.view(len(rows), 2, num_layers, -1).movedim(0, 2)
        self._finish_copies()

    def copy_blocks(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy the content of block ``sources[i]`` to block ``targets[i]``, one after the other; takes no memory."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._contents[:, :, target].copy_(self._contents[:, :, source])

    def _index(self, block_ids: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(block_ids).to(self._contents.device, torch.int64)

    def _finish_copies(self) -> None:
        """Wait for copies from and to pinned memory, which somebody else may write next."""
        if self._contents.is_cuda:
            torch.cuda.current_stream(self._contents.device).synchronize()
