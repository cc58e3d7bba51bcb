"""Paged attention against attention written out row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.core.forward_batch import ForwardBatch
from headrace.core.model_config import LayerConfig, ModelConfig
from headrace.core.rope import RopeConfig
from headrace.core.step import ScheduledSequence, StepPlan
from headrace.model.attention import PagedAttention
from headrace.model.kv_memory import PagedKVMemory
from headrace.model.torch_batch import AttentionPlan, TorchBatch, plan_attention

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 8, 4

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=10,
    hidden_size=8,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate_size=8,
    max_position=256,
    layers=(LayerConfig(RopeConfig(10_000.0, HEAD_DIM)),) * 2,
    norm_eps=1e-5,
    attention_scale=0.3,
)

Spans = list[tuple[int, int]]
"""Per sequence: where its chunk starts, and the sequence's length including it."""

MIXED: Spans = [(6, 7), (0, 9), (30, 31), (5, 16), (0, 1), (12, 13), (50, 51), (3, 5)]


class Scene:
    """Sequences in scattered blocks of a memory that elsewhere, and behind their ends, holds NaN."""

    def __init__(self, spans: Spans) -> None:
        torch.manual_seed(0)
        num_blocks = sum(-(-length // BLOCK_SIZE) for _, length in spans) + 3
        free = np.random.default_rng(0).permutation(num_blocks).astype(np.int32).tolist()
        self.spans = spans
        self.kv = PagedKVMemory(CONFIG, num_blocks, BLOCK_SIZE, torch.float32)
        self.kv.keys[1].fill_(math.nan)
        self.kv.values[1].fill_(math.nan)
        self.keys, self.values, scheduled = [], [], []
        for seq_id, (start, length) in enumerate(spans):
            block_ids = np.array([free.pop() for _ in range(-(-length // BLOCK_SIZE))], np.int32)
            scheduled.append(ScheduledSequence(seq_id, range(length - start), start, block_ids))
            self._fill(block_ids, length)
        self.source = ForwardBatch.from_plan(StepPlan(0, tuple(scheduled)), BLOCK_SIZE)
        self.batch = TorchBatch.from_forward_batch(self.source)
        self.queries = torch.randn(self.source.num_tokens, HEADS, HEAD_DIM)

    def _fill(self, block_ids: np.ndarray, length: int) -> None:
        keys, values = torch.randn(2, length, KV_HEADS, HEAD_DIM)
        positions = np.arange(length)
        slots = torch.from_numpy(block_ids[positions // BLOCK_SIZE] * np.int64(BLOCK_SIZE) + positions % BLOCK_SIZE)
        self.kv.write(1, slots, keys, values)
        self.keys.append(keys)
        self.values.append(values)

    def plan(self, window: int | None) -> AttentionPlan:
        return plan_attention(self.batch, BLOCK_SIZE, window, torch.float32)

    def attend(self, window: int | None, soft_cap: float | None) -> Tensor:
        return PagedAttention(0.3, soft_cap)(1, self.queries, self.kv, self.plan(window))

    def attend_row_by_row(self, window: int | None, soft_cap: float | None) -> Tensor:
        rows = []
        for (start, length), keys, values in zip(self.spans, self.keys, self.values, strict=True):
            for position in range(start, length):
                first = 0 if window is None else max(0, position - window + 1)
                rows.append(
                    naive_row(
                        self.queries[len(rows)], keys[first : position + 1], values[first : position + 1], soft_cap
                    )
                )
        return torch.stack(rows)


def naive_row(query: Tensor, keys: Tensor, values: Tensor, soft_cap: float | None) -> Tensor:
    output = torch.empty_like(query)
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        scores = 0.3 * (keys[:, shared] @ query[head])
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        output[head] = scores.softmax(dim=0) @ values[:, shared]
    return output


@pytest.mark.parametrize("soft_cap", [None, 0.5])
@pytest.mark.parametrize("window", [None, 1, 5, 8, 1000])
@pytest.mark.parametrize(
    "spans", [MIXED, MIXED[:1], [(0, 13)], [(20, 21)] * 3], ids=["mixed", "one", "prompt", "equal"]
)
def test_attention_is_what_it_is_row_by_row(spans: Spans, window: int | None, soft_cap: float | None) -> None:
    scene = Scene(spans)
    expected = scene.attend_row_by_row(window, soft_cap)
    assert (scene.attend(window, soft_cap) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("window", [None, 6])
def test_a_plan_covers_every_row_once(window: int | None) -> None:
    plan = Scene(MIXED).plan(window)
    rows = [row for group in plan.groups for row in group.rows.tolist()]
    rows += [row for chunk in plan.chunks for row in range(chunk.start, chunk.end)]
    assert sorted(rows) == list(range(sum(length - start for start, length in MIXED)))


def test_decodes_of_similar_length_are_one_group_and_others_are_not_padded_to_them() -> None:
    plan = Scene([(99, 100), (59, 60), (9, 10), (70, 71), (7, 8)]).plan(None)
    assert [group.key_slots.shape for group in plan.groups] == [(3, 100), (2, 10)]


def test_equal_lengths_need_no_mask() -> None:
    (group,) = Scene([(20, 21), (20, 21)]).plan(None).groups
    assert group.mask is None


def test_a_window_bounds_what_a_decode_reads() -> None:
    (group,) = Scene([(99, 100), (59, 60)]).plan(8).groups
    assert group.key_slots.shape == (2, 8)
    assert group.mask is None


def test_a_chunk_reads_no_further_back_than_its_first_tokens_window() -> None:
    (chunk,) = Scene([(50, 60)]).plan(8).chunks
    assert len(chunk.key_slots) == 60 - (50 - 7)
