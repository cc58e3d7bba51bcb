"""A ``ForwardBatch`` as tensors on a device, and the shape of its attention.

The flat arrays become tensors as they are. For attention the rows are sorted by what is fast: rows of
sequences with a single new token are computed together, padded to a common length; longer chunks are
computed sequence by sequence. The result does not depend on the sorting.
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
    """R rows, each the only new token of its sequence; row r attends to at most L tokens, ``key_slots[r]``.

    Rows that attend to fewer repeat one of their own slots (another's could hold NaN, which no mask undoes)
    under a ``mask`` that is added to the scores: 0 or -inf. It is ``None`` if all rows attend to L tokens.
    """

    rows: Tensor  # [R]
    key_slots: Tensor  # [R, L]
    mask: Tensor | None  # [R, 1, 1, L]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``[start, end)`` of one sequence, which attend to L tokens under ``mask``, as in a group."""

    start: int
    end: int
    key_slots: Tensor  # [L]
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
    logit_rows: Tensor  # [S] int64
    stored_rows: Tensor | None  # [T + J] int64: the row for each of ``stored_slots``; None if that is each row once
    stored_slots: Tensor  # [T + J] int64

    @classmethod
    def from_forward_batch(cls, batch: ForwardBatch, device: torch.device | str = "cpu") -> TorchBatch:
        def on_device(array: NDArray[np.int32]) -> Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(device)

        rows = np.concatenate((np.arange(batch.num_tokens, dtype=np.int32), batch.joined_rows))
        return cls(
            source=batch,
            input_ids=on_device(batch.input_ids),
            positions=on_device(batch.positions),
            logit_rows=on_device(batch.logit_rows),
            stored_rows=on_device(rows) if len(batch.joined_rows) else None,
            stored_slots=on_device(np.concatenate((batch.slot_mapping, batch.joined_slots))),
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

    Sequence ``b`` reads its positions ``[first[b], seq_lens[b])``: earlier ones lie outside every new
    token's window.
    """

    def __init__(self, batch: TorchBatch, block_size: int, window: int | None, dtype: torch.dtype) -> None:
        self._source = batch.source
        self._device = batch.device
        self._dtype = dtype
        self._block_size = block_size
        self._tables = batch.source.block_tables.astype(np.int64)  # [B, M]
        self._lengths = batch.source.seq_lens.astype(np.int64)  # [B]
        self._window = window if window is not None else int(self._lengths.max(initial=1))
        self._starts = self._lengths - np.diff(batch.source.query_start)
        self._first = np.maximum(self._starts - self._window + 1, 0)

    def similar(self, sequences: Int64Array) -> Iterator[Int64Array]:
        """Split ``sequences`` so that within a part no padding exceeds what is padded."""
        sizes = (self._lengths - self._first)[sequences]
        order = np.argsort(-sizes, kind="stable")
        start = 0
        for end in range(1, len(order) + 1):
            if end == len(order) or 2 * sizes[order[end]] < sizes[order[start]]:
                yield sequences[order[start:end]]
                start = end

    def decode_group(self, sequences: Int64Array) -> DecodeGroup:
        first, lengths = self._first[sequences, None], self._lengths[sequences, None]  # [R, 1]
        positions = first + np.arange(int((lengths - first).max()))  # [R, L]
        is_seen = positions < lengths
        return DecodeGroup(
            rows=self._indices(self._source.query_start[sequences]),
            key_slots=self._indices(self._slots(sequences[:, None], np.minimum(positions, lengths - 1))),
            mask=None if is_seen.all() else self._mask(is_seen)[:, None, None, :],
        )

    def chunk(self, sequence: int) -> Chunk:
        start, end = (int(row) for row in self._source.query_start[sequence : sequence + 2])
        queries = np.arange(self._starts[sequence], self._lengths[sequence])[:, None]
        keys = np.arange(self._first[sequence], self._lengths[sequence])
        is_seen = (keys <= queries) & (keys > queries - self._window)  # [n, L]
        return Chunk(start, end, self._indices(self._slots(sequence, keys)), self._mask(is_seen))

    def _slots(self, sequences: Int64Array | int, positions: Int64Array) -> Int64Array:
        block_ids: Int64Array = self._tables[sequences, positions // self._block_size]
        return block_ids * self._block_size + positions % self._block_size

    def _indices(self, array: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._device)

    def _mask(self, is_seen: BoolArray) -> Tensor:
        seen = torch.from_numpy(is_seen).to(self._device)
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)
