"""Attention over paged keys and values: grouped queries, sliding windows, soft caps.

Decode rows are computed together, longer chunks sequence by sequence, as ``torch_batch`` sorted them.
Knows tensors and blocks, not requests or layers' weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.model.kv_memory import PagedKVMemory
from headrace.model.torch_batch import AttentionPlan, Chunk, DecodeGroup


class PagedAttention:
    """Attends with scores ``scale * q.k``, soft-capped if ``soft_cap`` is set."""

    def __init__(self, scale: float, soft_cap: float | None) -> None:
        self._scale = scale
        self._soft_cap = soft_cap

    def __call__(self, layer: int, queries: Tensor, kv: PagedKVMemory, plan: AttentionPlan) -> Tensor:
        """What each row of ``queries`` ``[T, num_heads, head_dim]`` reads; of the same shape.

        The keys and values of these rows must already be in ``kv``.
        """
        output = torch.empty_like(queries)
        for group in plan.groups:
            output.index_copy_(0, group.rows, self._decode(layer, queries[group.rows], kv, group))
        for chunk in plan.chunks:
            output[chunk.start : chunk.end] = self._extend(layer, queries[chunk.start : chunk.end], kv, chunk)
        return output

    def _decode(self, layer: int, queries: Tensor, kv: PagedKVMemory, group: DecodeGroup) -> Tensor:
        num_rows, _, head_dim = queries.shape
        keys, values = (
            tensor.view(num_rows, -1, *tensor.shape[1:]).transpose(1, 2)  # [R, num_kv_heads, L, head_dim]
            for tensor in kv.read(layer, group.key_slots.flatten())
        )
        # The heads that share keys are the rows of one matrix product.
        shared = queries.view(num_rows, keys.shape[1], -1, head_dim)  # [R, num_kv_heads, sharing heads, head_dim]
        return self._attend(shared, keys, values, group.mask).reshape(queries.shape)

    def _extend(self, layer: int, queries: Tensor, kv: PagedKVMemory, chunk: Chunk) -> Tensor:
        num_rows, _, head_dim = queries.shape
        keys, values = (
            tensor.transpose(0, 1).unsqueeze(1)  # [num_kv_heads, 1, L, head_dim]
            for tensor in kv.read(layer, chunk.key_slots)
        )
        shared = queries.view(num_rows, len(keys), -1, head_dim).permute(1, 2, 0, 3)
        each = (-1, shared.shape[1], -1, -1)  # [num_kv_heads, sharing heads, n or L, head_dim], keys not copied
        attended = self._attend(shared, keys.expand(each), values.expand(each), chunk.mask)
        return attended.flatten(0, 1).transpose(0, 1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax attention of ``[A, B, n, head_dim]`` over ``[A, B, L, head_dim]``; of the queries' shape."""
        if self._soft_cap is None:
            return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self._scale)
        scores = (queries @ keys.transpose(-1, -2)).float() * self._scale  # [A, B, n, L]
        scores = self._soft_cap * torch.tanh(scores / self._soft_cap)
        if mask is not None:
            scores = scores + mask
        return scores.softmax(dim=-1).to(values.dtype) @ values
