"""The forward pass of one sequence written out in NumPy's float64, straight from the facts; slow and obvious."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.core.model_config import Activation, ModelConfig, NormPlacement, QkNorm

Float64Array = NDArray[np.float64]
Weights = Mapping[str, Float64Array]


def naive_hidden(config: ModelConfig, weights: Weights, token_ids: list[int]) -> Float64Array:
    """Hidden states before the final norm, ``[len(token_ids), hidden_size]``."""
    hidden = weights["embedding"][token_ids] * config.embedding_scale
    norms_before = config.norm_placement is not NormPlacement.POST
    norms_after = config.norm_placement is not NormPlacement.PRE
    for layer in range(config.num_layers):
        for block, name in ((_attention, "attention"), (_feed_forward, "feed_forward")):
            prefix = f"layers.{layer}.{name}"
            source = _norm(config, hidden, weights[prefix + "_norm"]) if norms_before else hidden
            result = block(config, weights, layer, source)
            if norms_after:
                result = _norm(config, result, weights[prefix + "_post_norm"])
            hidden = hidden + config.residual_scale * result
    return hidden


def naive_logits(config: ModelConfig, weights: Weights, hidden: Float64Array) -> Float64Array:
    table = weights["embedding" if config.has_tied_embeddings else "head"]
    logits = _norm(config, hidden, weights["final_norm"]) @ table.T / config.logits_divisor
    return _capped(logits, config.final_soft_cap)


def _norm(config: ModelConfig, x: Float64Array, weight: Float64Array) -> Float64Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.norm_eps) * weight


def _capped(x: Float64Array, cap: float | None) -> Float64Array:
    return x if cap is None else cap * np.tanh(x / cap)


def _attention(config: ModelConfig, weights: Weights, layer: int, x: Float64Array) -> Float64Array:
    prefix, num_tokens = f"layers.{layer}.", len(x)
    qkv = x @ weights[prefix + "qkv"].T + weights.get(prefix + "qkv_bias", 0.0)
    queries, keys, values = np.split(qkv, [config.query_size, config.query_size + config.kv_size], axis=1)
    if config.qk_norm is QkNorm.WHOLE:
        queries = _norm(config, queries, weights[prefix + "q_norm"])
        keys = _norm(config, keys, weights[prefix + "k_norm"])
    queries, keys, values = (part.reshape(num_tokens, -1, config.head_dim) for part in (queries, keys, values))
    if config.qk_norm is QkNorm.PER_HEAD:
        queries = _norm(config, queries, weights[prefix + "q_norm"])
        keys = _norm(config, keys, weights[prefix + "k_norm"])
    queries, keys = (_turned(config, layer, part) for part in (queries, keys))
    group = config.num_heads // config.num_kv_heads
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = _capped(np.einsum("qhd,khd->hqk", queries, keys) * config.attention_scale, config.attention_soft_cap)
    distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)
    window = config.layers[layer].sliding_window or num_tokens
    scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", shares, values).reshape(num_tokens, config.query_size)
    return mixed @ weights[prefix + "output"].T + weights.get(prefix + "output_bias", 0.0)


def _turned(config: ModelConfig, layer: int, heads: Float64Array) -> Float64Array:
    """``heads`` ``[T, H, head_dim]`` rotated by their positions."""
    rope = config.layers[layer].rope
    angles = np.arange(len(heads))[:, None, None] * rope.inverse_frequencies()
    half = rope.rotary_dim // 2
    first, second, rest = np.split(heads, [half, rope.rotary_dim], axis=-1)
    cosines, sines = np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines, rest], axis=-1)


def _feed_forward(config: ModelConfig, weights: Weights, layer: int, x: Float64Array) -> Float64Array:
    prefix = f"layers.{layer}."
    gate, up = np.split(x @ weights[prefix + "gate_up"].T, 2, axis=1)
    if config.activation is Activation.SILU:
        activated = gate / (1 + np.exp(-gate))
    else:
        activated = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return (activated * up) @ weights[prefix + "down"].T
