"""A ``ForwardBatch`` as tensors on a device, and the shape of its attention.

The flat arrays become tensors as they are. For attention the rows are sorted by what is fast: rows of
sequences with a single new token are computed together, padded to a common number of blocks; longer
chunks are computed sequence by sequence. The result does not depend on the sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.forward_batch import ForwardBatch

Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """R rows, each the only new token of its sequence, that read N blocks each and see L of their tokens.

    ``mask`` is added to the scores: 0 for what a row attends to, -inf for the rest; ``None`` if all rows
    attend to all L tokens.
    """

    rows: Tensor  # [R]
    block_ids: Tensor  # [R * N]
    num_keys: int  # L
    mask: Tensor | None  # [R, 1, 1, L]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``[start, end)`` of one sequence, attending to L tokens in N blocks; ``mask`` as in a group."""

    start: int
    end: int
    block_ids: Tensor  # [N]
    num_keys: int  # L
    mask: Tensor  # [end - start, L]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Who attends to what in all layers with the same sliding window; covers every row once."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class TorchBatch:
    """The tensors of a step: T tokens, S of which choose a next token."""

    source: ForwardBatch
    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64
    logit_rows: Tensor  # [S] int64

    @classmethod
    def from_forward_batch(cls, batch: ForwardBatch, device: torch.device | str = "cpu") -> TorchBatch:
        def on_device(array: NDArray[np.int32]) -> Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(device)

        return cls(
            source=batch,
            input_ids=on_device(batch.input_ids),
            positions=on_device(batch.positions),
            slot_mapping=on_device(batch.slot_mapping),
            logit_rows=on_device(batch.logit_rows),
        )

    @property
    def device(self) -> torch.device:
        return self.input_ids.device


def plan_attention(batch: TorchBatch, block_size: int, window: int | None, dtype: torch.dtype) -> AttentionPlan:
    """How the rows of ``batch`` attend under ``window``, with masks in ``dtype``."""
    planner = _Planner(batch, block_size, window, dtype)
    counts = np.diff(batch.source.query_start)
    groups = tuple(planner.decode_group(members) for members in planner.similar(np.flatnonzero(counts == 1)))
    chunks = tuple(planner.chunk(int(sequence)) for sequence in np.flatnonzero(counts > 1))
    return AttentionPlan(groups, chunks)


class _Planner:
    """Turns sequences of one batch, given by their indices, into groups and chunks.

    A sequence reads the blocks ``[first_block, end_block)`` of its table: those before ``first_block`` lie
    wholly outside every new token's window.
    """

    def __init__(self, batch: TorchBatch, block_size: int, window: int | None, dtype: torch.dtype) -> None:
        self._source = batch.source
        self._device = batch.device
        self._dtype = dtype
        self._block_size = block_size
        self._lengths = batch.source.seq_lens.astype(np.int64)  # [B]
        self._window = window if window is not None else int(self._lengths.max(initial=1))
        first_positions = self._lengths - np.diff(batch.source.query_start)
        self._first_block = np.maximum(first_positions - self._window + 1, 0) // block_size
        self._end_block = -(-self._lengths // block_size)

    def similar(self, sequences: Int64Array) -> Iterator[Int64Array]:
        """Split ``sequences`` so that within a part no padding exceeds what is padded."""
        sizes = (self._end_block - self._first_block)[sequences]
        order = np.argsort(-sizes, kind="stable")
        start = 0
        for end in range(1, len(order) + 1):
            if end == len(order) or 2 * sizes[order[end]] < sizes[order[start]]:
                yield sequences[order[start:end]]
                start = end

    def decode_group(self, sequences: Int64Array) -> DecodeGroup:
        first_block = self._first_block[sequences]
        num_blocks = int((self._end_block[sequences] - first_block).max())
        columns = first_block[:, None] + np.arange(num_blocks)  # [R, N]
        tables = self._source.block_tables
        columns = np.minimum(columns, tables.shape[1] - 1)  # padding; masked
        ends = self._lengths[sequences] - first_block * self._block_size  # [R]
        num_keys = int(ends.max())
        keys = np.arange(num_keys)
        is_seen = (keys < ends[:, None]) & (keys >= ends[:, None] - self._window)  # [R, L]
        return DecodeGroup(
            rows=self._indices(self._source.query_start[sequences]),
            block_ids=self._indices(tables[sequences[:, None], columns].ravel()),
            num_keys=num_keys,
            mask=None if is_seen.all() else self._mask(is_seen)[:, None, None, :],
        )

    def chunk(self, sequence: int) -> Chunk:
        start, end = (int(row) for row in self._source.query_start[sequence : sequence + 2])
        length = int(self._lengths[sequence])
        first_block = int(self._first_block[sequence])
        block_ids = self._source.block_tables[sequence, first_block : self._end_block[sequence]]
        offset = first_block * self._block_size
        positions = np.arange(length - (end - start), length)[:, None]
        keys = np.arange(offset, length)
        is_seen = (keys <= positions) & (keys > positions - self._window)  # [n, L]
        return Chunk(
            start=start,
            end=end,
            block_ids=self._indices(block_ids),
            num_keys=length - offset,
            mask=self._mask(is_seen),
        )

    def _indices(self, array: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._device)

    def _mask(self, is_seen: BoolArray) -> Tensor:
        seen = torch.from_numpy(is_seen).to(self._device)
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)
