from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.core.model_config import LayerConfig, ModelConfig
from headrace.core.rope import RopeConfig
from headrace.model.weights import load_weights

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 8, 2, 1, 4, 6, 10

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate_size=INNER,
    max_position=64,
    layers=(LayerConfig(RopeConfig(10_000.0, HEAD_DIM)),),
    norm_eps=1e-5,
    attention_scale=0.5,
)

SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCAB, HIDDEN),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
    "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
}


@dataclass
class FakeTensor:
    """A stored tensor whose values tell which tensor and element they are."""

    shape: tuple[int, ...]
    first: float

    def to_float32(self) -> NDArray[np.float32]:
        return (self.first + np.arange(np.prod(self.shape)).reshape(self.shape)).astype(np.float32)


@dataclass
class FakeCheckpoint:
    tensors: Mapping[str, FakeTensor]
    format: str = "safetensors"
    metadata: Mapping[str, object] = field(default_factory=dict)
    generation_config: Mapping[str, object] = field(default_factory=dict)


def checkpoint(**extra: tuple[int, ...]) -> FakeCheckpoint:
    shapes = SHAPES | {name.replace("__", "."): shape for name, shape in extra.items()}
    return FakeCheckpoint({name: FakeTensor(shape, 1000.0 * i) for i, (name, shape) in enumerate(shapes.items())})


def load(source: FakeCheckpoint, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return load_weights(source, CONFIG, dtype, lambda done, total: None)


def test_queries_keys_and_values_become_one_matrix_in_this_order() -> None:
    source = checkpoint()
    qkv = load(source)["layers.0.qkv"]
    parts = [source.tensors[f"model.layers.0.self_attn.{part}_proj.weight"].to_float32() for part in "qkv"]
    assert np.array_equal(qkv.numpy(), np.concatenate(parts))


def test_gate_comes_before_up() -> None:
    source = checkpoint()
    gate_up = load(source)["layers.0.gate_up"]
    parts = [source.tensors[f"model.layers.0.mlp.{part}_proj.weight"].to_float32() for part in ("gate", "up")]
    assert np.array_equal(gate_up.numpy(), np.concatenate(parts))


def test_norms_stay_float32_when_matrices_do_not() -> None:
    weights = load(checkpoint(), torch.bfloat16)
    assert weights["layers.0.attention_norm"].dtype is torch.float32
    assert weights["final_norm"].dtype is torch.float32
    assert {weights[f"layers.0.{name}"].dtype for name in ("qkv", "gate_up", "down", "output")} == {torch.bfloat16}


def test_progress_ends_with_all_parameters() -> None:
    reports: list[tuple[int, int]] = []
    load_weights(checkpoint(), CONFIG, torch.float32, lambda done, total: reports.append((done, total)))
    assert reports[-1] == (CONFIG.num_parameters, CONFIG.num_parameters)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_a_missing_tensor_is_named() -> None:
    source = checkpoint()
    del source.tensors["model.layers.0.mlp.up_proj.weight"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"lacks tensors the configuration implies \(1\): model.layers.0.mlp.up"):
        load(source)


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(ConfigError, match=r"has tensors that are not supported \(1\): model.layers.1.mlp"):
        load(checkpoint(model__layers__1__mlp=(3,)))


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    source = checkpoint(model__norm__weight=(HIDDEN + 1,))
    with pytest.raises(ConfigError, match=r"model.norm.weight has shape \[9\] but the configuration implies \[8\]"):
        load(source)


def test_shapes_are_checked_before_anything_is_read() -> None:
    class Unread(FakeTensor):
        def to_float32(self) -> NDArray[np.float32]:
            raise AssertionError("read before all shapes were checked")

    tensors = {name: Unread(shape, 0.0) for name, shape in SHAPES.items()}
    tensors["model.layers.0.mlp.down_proj.weight"] = Unread((HIDDEN, 1 << 40), 0.0)
    with pytest.raises(ConfigError, match="down_proj"):
        load(FakeCheckpoint(tensors))


def test_tensors_that_repeat_the_rope_settings_are_ignored() -> None:
    weights = load(checkpoint(model__layers__0__self_attn__rotary_emb__inv_freq=(2,)))
    assert not any("inv_freq" in name for name in weights)


def test_a_stored_head_of_a_tied_model_is_ignored() -> None:
    tied = dataclasses.replace(CONFIG, has_tied_embeddings=True)
    weights = load_weights(checkpoint(), tied, torch.float32, lambda done, total: None)
    assert "head" not in weights
