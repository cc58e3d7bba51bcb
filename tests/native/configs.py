"""Small models of every shape the lowering distinguishes, as facts alone, and random weights for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.core.model_config import Activation, LayerConfig, ModelConfig, NormPlacement, QkNorm
from headrace.core.rope import RopeConfig
from headrace.native.operations import WeightFormat
from headrace.native.packing import PackedWeight

Float32Array = NDArray[np.float32]

ROPE = RopeConfig(theta=10000.0, rotary_dim=16)
LOCAL_ROPE = RopeConfig(theta=100.0, rotary_dim=8)

_BASE = {
    "architecture": "llama",
    "vocab_size": 67,
    "hidden_size": 40,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 56,
    "max_position": 512,
    "layers": (LayerConfig(ROPE), LayerConfig(ROPE)),
    "norm_eps": 1e-5,
    "attention_scale": 0.25,
}

SHAPES: dict[str, ModelConfig] = {
    "llama": ModelConfig(**_BASE),
    "tied, biased": ModelConfig(**_BASE, has_tied_embeddings=True, has_qkv_bias=True, has_output_bias=True),
    "qk norm per head": ModelConfig(**_BASE, qk_norm=QkNorm.PER_HEAD),
    "norms after": ModelConfig(**_BASE, norm_placement=NormPlacement.POST, qk_norm=QkNorm.WHOLE),
    "norms around": ModelConfig(
        **_BASE | {"layers": (LayerConfig(LOCAL_ROPE, 9), LayerConfig(ROPE))},
        norm_placement=NormPlacement.PRE_AND_POST,
        qk_norm=QkNorm.PER_HEAD,
        activation=Activation.GELU_TANH,
        embedding_scale=6.3,
        attention_soft_cap=5.0,
        final_soft_cap=3.0,
    ),
    "scaled": ModelConfig(**_BASE, embedding_scale=3.0, residual_scale=0.4, logits_divisor=2.0),
}


def matrix_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {"embedding": (config.vocab_size, hidden)}
    if not config.has_tied_embeddings:
        shapes["head"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        shapes |= {
            f"layers.{layer}.qkv": (config.query_size + 2 * config.kv_size, hidden),
            f"layers.{layer}.output": (hidden, config.query_size),
            f"layers.{layer}.gate_up": (2 * inner, hidden),
            f"layers.{layer}.down": (hidden, inner),
        }
    return shapes


def vector_sizes(config: ModelConfig) -> dict[str, int]:
    sizes = {"final_norm": config.hidden_size}
    norms = {
        NormPlacement.PRE: ["attention_norm", "feed_forward_norm"],
        NormPlacement.POST: ["attention_post_norm", "feed_forward_post_norm"],
    }
    norms[NormPlacement.PRE_AND_POST] = norms[NormPlacement.PRE] + norms[NormPlacement.POST]
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        sizes |= {prefix + name: config.hidden_size for name in norms[config.norm_placement]}
        if config.has_qkv_bias:
            sizes[prefix + "qkv_bias"] = config.query_size + 2 * config.kv_size
        if config.has_output_bias:
            sizes[prefix + "output_bias"] = config.hidden_size
        if config.qk_norm is QkNorm.PER_HEAD:
            sizes |= {prefix + "q_norm": config.head_dim, prefix + "k_norm": config.head_dim}
        if config.qk_norm is QkNorm.WHOLE:
            sizes |= {prefix + "q_norm": config.query_size, prefix + "k_norm": config.kv_size}
    return sizes


def random_matrices(config: ModelConfig, weight_format: WeightFormat, seed: int = 0) -> dict[str, PackedWeight]:
    """Packed random weights; the embedding stays in float32."""
    rng = np.random.default_rng(seed)
    matrices = {}
    for name, (rows, columns) in matrix_shapes(config).items():
        chosen = WeightFormat.F32 if name == "embedding" and "head" in matrix_shapes(config) else weight_format
        matrices[name] = PackedWeight.empty(chosen, rows, columns)
        matrices[name].put_floats(0, rng.normal(0.0, columns**-0.5, (rows, columns)).astype(np.float32))
    return matrices


def random_vectors(config: ModelConfig, seed: int = 0) -> dict[str, Float32Array]:
    rng = np.random.default_rng(seed + 1)
    return {name: rng.normal(1.0, 0.3, size).astype(np.float32) for name, size in vector_sizes(config).items()}


def formats(matrices: Mapping[str, PackedWeight]) -> dict[str, WeightFormat]:
    return {name: matrix.format for name, matrix in matrices.items()}
