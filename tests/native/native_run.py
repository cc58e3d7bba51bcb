"""Runs a native program step by step, with blocks handed out in a scattered order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.core.forward_batch import ForwardBatch
from headrace.core.step import JoinedTokens, ScheduledSequence, StepPlan
from headrace.native.operations import KvFormat
from headrace.native.program import NativeProgram, NativeRuntime, RuntimeSizes

Float32Array = NDArray[np.float32]

BLOCK_SIZE = 16


@dataclass
class Row:
    """One sequence: how many tokens are computed, and the blocks they lie in."""

    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class NativeRun:
    """A program with a runtime; sequences are named by any number and grow by ``step``."""

    def __init__(
        self, program: NativeProgram, kv_format: KvFormat = KvFormat.F32, num_threads: int = 1, num_blocks: int = 64
    ) -> None:
        sizes = RuntimeSizes(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_tokens=1024,
            max_sequences=64,
            max_context=num_blocks * BLOCK_SIZE,
            num_threads=num_threads,
        )
        self.runtime = NativeRuntime(program, sizes, kv_format)
        self.is_finite: dict[int, bool] = {}
        self.slots: dict[int, NDArray[np.int32]] = {}
        self._free = np.random.default_rng(0).permutation(num_blocks).tolist()
        self._rows: dict[int, Row] = {}
        self._joined: dict[int, tuple[JoinedTokens, ...]] = {}
        self._max_rows = sizes.max_sequences

    def step(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Float32Array]:
        """Append each sequence's tokens in one batch; the logits of all its new rows, ``[n, vocab_size]``."""
        batch = self._forward(chunks)
        logits = np.concatenate(
            [
                self.runtime.logits(np.arange(start, min(start + self._max_rows, batch.num_tokens), dtype=np.int32))
                for start in range(0, batch.num_tokens, self._max_rows)
            ]
        )
        return dict(zip(chunks, np.split(logits, batch.query_start[1:-1]), strict=True))

    def hidden(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Float32Array]:
        """Append each sequence's tokens in one batch; their hidden states, ``[n, hidden_size]``."""
        batch = self._forward(chunks)
        return dict(zip(chunks, np.split(self.runtime.hidden(batch.num_tokens), batch.query_start[1:-1]), strict=True))

    def next_tokens(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Append each sequence's tokens in one batch; the likeliest token after each."""
        batch = self._forward(chunks)
        logits = self.runtime.logits(batch.query_start[1:] - np.int32(1))
        return dict(zip(chunks, logits.argmax(axis=1).tolist(), strict=True))

    def join(self, seq_id: int, *parts: JoinedTokens) -> None:
        """Have a new sequence begin, in the next step, with what that computes for others."""
        self._joined[seq_id] = parts
        self._rows[seq_id] = Row(num_computed=parts[-1].end)

    def _forward(self, chunks: Mapping[int, Sequence[int]]) -> ForwardBatch:
        plan = StepPlan(0, tuple(self._schedule(seq_id, tokens) for seq_id, tokens in chunks.items()))
        batch = ForwardBatch.from_plan(plan, BLOCK_SIZE).wanting_all()
        self.is_finite = dict(zip(chunks, self.runtime.forward(batch).tolist(), strict=True))
        self.slots = dict(zip(chunks, np.split(batch.slot_mapping, batch.query_start[1:-1]), strict=True))
        return batch

    def _schedule(self, seq_id: int, tokens: Sequence[int]) -> ScheduledSequence:
        row = self._rows.setdefault(seq_id, Row())
        start, end = row.num_computed, row.num_computed + len(tokens)
        while len(row.block_ids) * BLOCK_SIZE < end:
            row.block_ids.append(self._free.pop())
        row.num_computed = end
        joined = self._joined.pop(seq_id, ())
        return ScheduledSequence(seq_id, tokens, start, np.array(row.block_ids, np.int32), joined=joined)
