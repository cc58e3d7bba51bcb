"""Runs a Transformer step by step over paged memory, with blocks handed out in a scattered order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headrace.checkpoint.open import open_checkpoint
from headrace.core.forward_batch import ForwardBatch
from headrace.core.model_config import ModelConfig
from headrace.core.step import JoinedTokens, ScheduledSequence, StepPlan
from headrace.model.config_parser import parse_model_config
from headrace.model.kv_memory import PagedKVMemory
from headrace.model.torch_batch import TorchBatch
from headrace.model.transformer import Transformer
from headrace.model.weights import load_weights


@dataclass
class Row:
    """One sequence: how many tokens are computed, and the blocks they lie in."""

    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class PagedRun:
    """A model with memory; sequences are named by any number and grow by ``step``."""

    def __init__(
        self, model: Transformer, config: ModelConfig, num_blocks: int = 64, block_size: int = 4, seed: int = 0
    ) -> None:
        self.model = model
        self.config = config
        self.kv = PagedKVMemory(config, num_blocks, block_size, model.dtype)
        self._free = np.random.default_rng(seed).permutation(num_blocks).tolist()
        self._rows: dict[int, Row] = {}
        self._joined: dict[int, tuple[JoinedTokens, ...]] = {}

    def step(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Append each sequence's tokens in one batch; the logits of all its new rows, ``[n, vocab_size]``."""
        logits = self.model.logits(self._hidden(chunks))
        parts = torch.split(logits, [len(tokens) for tokens in chunks.values()])
        return dict(zip(chunks, parts, strict=True))

    def next_tokens(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Append each sequence's tokens in one batch; the likeliest token after each."""
        last_rows = np.cumsum([len(tokens) for tokens in chunks.values()]) - 1
        logits = self.model.logits(self._hidden(chunks)[last_rows])
        return dict(zip(chunks, logits.argmax(dim=-1).tolist(), strict=True))

    def join(self, seq_id: int, *parts: JoinedTokens) -> None:
        """Have a new sequence begin, in the next step, with what that computes for others."""
        self._joined[seq_id] = parts
        self._rows[seq_id] = Row(num_computed=parts[-1].end)

    def _hidden(self, chunks: Mapping[int, Sequence[int]]) -> Tensor:
        plan = StepPlan(0, tuple(self._schedule(seq_id, tokens) for seq_id, tokens in chunks.items()))
        batch = ForwardBatch.from_plan(plan, self.kv.block_size)
        return self.model.forward(TorchBatch.from_forward_batch(batch), self.kv)

    def _schedule(self, seq_id: int, tokens: Sequence[int]) -> ScheduledSequence:
        row = self._rows.setdefault(seq_id, Row())
        start, end = row.num_computed, row.num_computed + len(tokens)
        while len(row.block_ids) * self.kv.block_size < end:
            row.block_ids.append(self._free.pop())
        row.num_computed = end
        joined = self._joined.pop(seq_id, ())
        return ScheduledSequence(seq_id, tokens, start, np.array(row.block_ids, np.int32), joined=joined)


def load_model(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Transformer, ModelConfig]:
    checkpoint = open_checkpoint(path)
    config = parse_model_config(checkpoint)
    return Transformer(config, load_weights(checkpoint, config, dtype, lambda done, total: None)), config
