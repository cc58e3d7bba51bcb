"""The flat arrays kernels read, built once from a plan: one definition for every backend."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headrace.core.step import ScheduledSequence, StepPlan

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A step's tokens side by side: T tokens of B sequences, S of which sample, M blocks at most.

    Rows ``[query_start[b], query_start[b + 1])`` belong to sequence ``b`` and stand at ``positions``.
    Token ``t``'s keys and values go to KV slot ``slot_mapping[t] = block_id * block_size + offset``.
    Sequence ``b`` attends to its first ``seq_lens[b]`` tokens (this chunk included), which lie in the
    blocks ``block_tables[b, : ceil(seq_lens[b] / block_size)]``. A row of the table is filled up with its own
    last block: what a kernel reads too far, under a mask, never belongs to somebody else, whose NaN a mask
    would not hold back.
    ``logit_rows`` are the rows whose logits choose a next token, in plan order. Hidden states are wanted of sequence
    ``b``'s last ``num_wanted[b]`` rows; of the others only keys and values, and a backend need not compute what
    follows those of the last layer. Keys and values of row ``joined_rows[j]`` go to slot ``joined_slots[j]`` as well,
    before anything attends in that layer.
    """

    input_ids: Int32Array  # [T]
    positions: Int32Array  # [T]
    slot_mapping: Int32Array  # [T]
    query_start: Int32Array  # [B + 1]
    seq_lens: Int32Array  # [B]
    block_tables: Int32Array  # [B, M]
    logit_rows: Int32Array  # [S]
    num_wanted: Int32Array  # [B]
    joined_rows: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))  # [J]
    joined_slots: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))  # [J]

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.seq_lens)

    @classmethod
    def from_plan(cls, plan: StepPlan, block_size: int) -> ForwardBatch:
        """Flatten ``plan``; every scheduled sequence must have at least one token and enough blocks."""
        scheduled = plan.scheduled
        num_sequences = len(scheduled)
        counts = np.fromiter((len(s.token_ids) for s in scheduled), np.int32, num_sequences)
        starts = np.fromiter((s.start for s in scheduled), np.int32, num_sequences)
        query_start = np.zeros(num_sequences + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        num_tokens = int(query_start[-1])

        input_ids = np.fromiter(chain.from_iterable(s.token_ids for s in scheduled), np.int32, num_tokens)
        positions = np.arange(num_tokens, dtype=np.int32)
        positions += np.repeat(starts - query_start[:-1], counts)

        max_blocks = max((len(s.block_ids) for s in scheduled), default=0)
        block_tables = np.zeros((num_sequences, max_blocks), np.int32)
        for row, item in zip(block_tables, scheduled, strict=True):
            row[: len(item.block_ids)] = item.block_ids
            row[len(item.block_ids) :] = item.block_ids[-1]

        sequence_of_token = np.repeat(np.arange(num_sequences, dtype=np.int32), counts)
        slot_mapping = block_tables[sequence_of_token, positions // block_size] * np.int32(block_size)
        slot_mapping += positions % block_size

        joined_rows, joined_slots = _joined(plan, block_size, query_start)
        sampling = np.fromiter((s.sample is not None for s in scheduled), np.bool_, num_sequences)
        return cls(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slot_mapping.astype(np.int32, copy=False),
            query_start=query_start,
            seq_lens=starts + counts,
            block_tables=block_tables,
            logit_rows=query_start[1:][sampling] - np.int32(1),
            num_wanted=np.fromiter(map(_num_wanted, scheduled), np.int32, num_sequences),
            joined_rows=joined_rows,
            joined_slots=joined_slots,
        )

    def wanting_all(self) -> ForwardBatch:
        """The same, with hidden states of every row."""
        return replace(self, num_wanted=np.diff(self.query_start))


def _num_wanted(item: ScheduledSequence) -> int:
    """Rows from the first on whose logits are asked for."""
    if item.prompt_logprobs is not None:
        return len(item.token_ids) - item.prompt_logprobs.first_row
    return int(item.sample is not None)


def _joined(plan: StepPlan, block_size: int, query_start: Int32Array) -> tuple[Int32Array, Int32Array]:
    """The rows whose keys and values others need, and the slots of those others."""
    if not any(item.joined for item in plan.scheduled):
        return np.empty(0, np.int32), np.empty(0, np.int32)
    offsets = {item.seq_id: int(row) - item.start for item, row in zip(plan.scheduled, query_start[:-1], strict=True)}
    rows, slots = [], []
    for item in plan.scheduled:
        for joined in item.joined:
            positions = np.arange(joined.start, joined.end, dtype=np.int32)
            rows.append(positions + np.int32(offsets[joined.seq_id]))
            slots.append(item.block_ids[positions // block_size] * np.int32(block_size) + positions % block_size)
    return np.concatenate(rows), np.concatenate(slots)
