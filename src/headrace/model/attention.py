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
        num_rows, num_heads, head_dim = queries.shape
        keys, values = (
            tensor.view(num_rows, -1, *tensor.shape[1:])[:, : group.num_keys].transpose(1, 2)
            for tensor in kv.read(layer, group.block_ids)
        )  # [R, num_kv_heads, L, head_dim]
        # The heads that share keys are the rows of one matrix product.
        grouped = queries.reshape(
            num_rows, keys.shape[1], -1, head_dim
        )  # [R, num_kv_heads, heads per kv head, head_dim]
        return self._attend(grouped, keys, values, group.mask).reshape(num_rows, num_heads, head_dim)

    def _extend(self, layer: int, queries: Tensor, kv: PagedKVMemory, chunk: Chunk) -> Tensor:
        keys, values = (
            tensor[: chunk.num_keys].transpose(0, 1).unsqueeze(1) for tensor in kv.read(layer, chunk.block_ids)
        )  # [num_kv_heads, 1, L, head_dim]
        num_rows, _, head_dim = queries.shape
        grouped = queries.view(num_rows, keys.shape[0], -1, head_dim).permute(1, 2, 0, 3)
        shape = (-1, grouped.shape[1], -1, -1)  # [num_kv_heads, heads per kv head, n or L, head_dim]
        attended = self._attend(grouped, keys.expand(shape), values.expand(shape), chunk.mask)
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
