"""The forward pass: one decoder-only transformer for every supported family, as its ``ModelConfig`` says.

The readable reference of what a model computes. Knows weights, rows of tokens and paged keys and values;
does not know sequences, scheduling, sampling or where the weights came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from headrace.core.model_config import ModelConfig
from headrace.core.rope import RopeConfig
from headrace.model.attention import PagedAttention
from headrace.model.kv_memory import PagedKVMemory
from headrace.model.layers import FeedForward, Norm, RmsNorm, Rope, Rotation, unchanged
from headrace.model.torch_batch import AttentionPlan, TorchBatch, plan_attention


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the layers of one step share: where keys and values go, how rows turn and what they attend to."""

    kv: PagedKVMemory
    rows: Tensor | None  # [S]; None for every row once
    slots: Tensor  # [S]
    rotations: Mapping[RopeConfig, Rotation]
    plans: Mapping[int | None, AttentionPlan]  # by sliding window


class Transformer:
    """A model ready to run; ``weights`` are named as in ``headrace.model.weight_layout``, all on one device."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self._config = config
        self._embedding = weights["embedding"]  # [vocab_size, hidden_size]
        self._head = weights["embedding" if config.has_tied_embeddings else "head"]
        self._final_norm = RmsNorm(weights["final_norm"], config.norm_eps)
        self._layers = [Layer(config, weights, index) for index in range(config.num_layers)]
        factors = weights.get("rope_factors")
        self._ropes = {
            rope: Rope(rope, factors, self._embedding.device) for rope in {layer.rope for layer in config.layers}
        }

    @property
    def dtype(self) -> torch.dtype:
        """What hidden states, keys and values are computed in."""
        return self._embedding.dtype

    def forward(self, batch: TorchBatch, kv: PagedKVMemory) -> Tensor:
        """Normed hidden states ``[T, hidden_size]`` of the batch's rows; writes their keys and values."""
        with torch.inference_mode():
            context = self._context(batch, kv)
            hidden = embedding(batch.input_ids, self._embedding) * self._config.embedding_scale
            for layer in self._layers:
                hidden = layer.forward(hidden, context)
            return self._final_norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token ``[R, vocab_size]``, float32, of normed rows ``[R, hidden_size]``."""
        with torch.inference_mode():
            logits = linear(hidden, self._head).float()
            logits /= self._config.logits_divisor
            cap = self._config.final_soft_cap
            return logits if cap is None else cap * torch.tanh(logits / cap)

    def _context(self, batch: TorchBatch, kv: PagedKVMemory) -> StepContext:
        windows = {layer.sliding_window for layer in self._config.layers}
        return StepContext(
            kv=kv,
            rows=batch.stored_rows,
            slots=batch.stored_slots,
            rotations={config: rope.at(batch.positions) for config, rope in self._ropes.items()},
            plans={window: plan_attention(batch, kv.block_size, window, kv.dtype) for window in windows},
        )


class Layer:
    """Attention and feed-forward, each normed before, after or both, and added to the residual stream."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], index: int) -> None:
        prefix = f"layers.{index}."

        def norm(name: str) -> Norm:
            weight = weights.get(prefix + name)
            return unchanged if weight is None else RmsNorm(weight, config.norm_eps)

        self._index = index
        self._rope = config.layers[index].rope
        self._window = config.layers[index].sliding_window
        self._residual_scale = config.residual_scale
        self._attention_norm = norm("attention_norm")
        self._qkv = weights[prefix + "qkv"]  # [query_size + 2 * kv_size, hidden_size]
        self._qkv_bias = weights.get(prefix + "qkv_bias")
        self._qkv_sizes = [config.query_size, config.kv_size, config.kv_size]
        self._head_dim = config.head_dim
        self._q_norm = norm("q_norm")
        self._k_norm = norm("k_norm")
        self._attention = PagedAttention(config.attention_scale, config.attention_soft_cap)
        self._output = weights[prefix + "output"]  # [hidden_size, query_size]
        self._output_bias = weights.get(prefix + "output_bias")
        self._attention_post_norm = norm("attention_post_norm")
        self._feed_forward_norm = norm("feed_forward_norm")
        self._feed_forward = FeedForward(weights[prefix + "gate_up"], weights[prefix + "down"], config.activation)
        self._feed_forward_post_norm = norm("feed_forward_post_norm")

    def forward(self, hidden: Tensor, context: StepContext) -> Tensor:
        attended = self._attention_post_norm(self._attend(self._attention_norm(hidden), context))
        hidden = torch.add(hidden, attended, alpha=self._residual_scale)
        transformed = self._feed_forward_post_norm(self._feed_forward(self._feed_forward_norm(hidden)))
        return torch.add(hidden, transformed, alpha=self._residual_scale)

    def _attend(self, rows: Tensor, context: StepContext) -> Tensor:
        queries, keys, values = torch.split(linear(rows, self._qkv, self._qkv_bias), self._qkv_sizes, dim=-1)
        rotate = context.rotations[self._rope]
        queries = rotate(self._heads(self._q_norm(queries)))  # [T, num_heads, head_dim]
        keys = rotate(self._heads(self._k_norm(keys)))  # [T, num_kv_heads, head_dim]
        values = self._heads(values)
        if context.rows is not None:
            keys, values = keys[context.rows], values[context.rows]
        context.kv.write(self._index, context.slots, keys, values)
        attended = self._attention(self._index, queries, context.kv, context.plans[self._window])
        return linear(attended.flatten(1), self._output, self._output_bias)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), -1, self._head_dim)
