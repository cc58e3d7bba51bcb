from __future__ import annotations

import dataclasses
import math

import pytest

from headrace.core.errors import ConfigError
from headrace.core.model_config import COUNT_LIMITS, LayerConfig, ModelConfig, NormPlacement, QkNorm
from headrace.core.rope import RopeConfig

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    intermediate_size=10,
    max_position=64,
    layers=(LayerConfig(RopeConfig(10_000.0, 4)),) * 3,
    norm_eps=1e-5,
    attention_scale=0.5,
)


def test_the_parameters_of_a_plain_model_are_counted() -> None:
    attention = 2 * 8 * 16 + 2 * 8 * 8  # queries and output, keys and values
    layer = attention + 3 * 8 * 10 + 2 * 8
    assert CONFIG.num_parameters == 2 * 100 * 8 + 8 + 3 * layer


def test_a_tied_head_is_counted_once() -> None:
    tied = dataclasses.replace(CONFIG, has_tied_embeddings=True)
    assert CONFIG.num_parameters - tied.num_parameters == 800


def test_biases_and_extra_norms_are_counted() -> None:
    full = dataclasses.replace(
        CONFIG,
        has_qkv_bias=True,
        has_output_bias=True,
        norm_placement=NormPlacement.PRE_AND_POST,
        qk_norm=QkNorm.WHOLE,
    )
    assert full.num_parameters - CONFIG.num_parameters == 3 * ((16 + 8 + 8) + 8 + 2 * 8 + (16 + 8))


def test_kv_bytes_per_token_cover_keys_and_values_of_all_layers() -> None:
    assert CONFIG.kv_bytes_per_token(2) == 2 * 3 * 2 * 4 * 2


@pytest.mark.parametrize("fact", ["vocab_size", "hidden_size", "num_heads", "intermediate_size", "max_position"])
@pytest.mark.parametrize("value", [0, -1, 1 << 40, True, 2.0, "8", None])
def test_a_count_out_of_bounds_or_of_another_type_is_refused(fact: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(CONFIG, **{fact: value})
    assert caught.value.field == fact


def test_a_model_without_layers_or_with_too_many_is_refused() -> None:
    for layers in ((), CONFIG.layers[:1] * (COUNT_LIMITS["num_layers"] + 1)):
        with pytest.raises(ConfigError, match="num_layers"):
            dataclasses.replace(CONFIG, layers=layers)


def test_heads_must_share_keys_evenly() -> None:
    with pytest.raises(ConfigError, match="4, which is not a multiple of num_kv_heads 3"):
        dataclasses.replace(CONFIG, num_kv_heads=3)


def test_more_rotary_dimensions_than_a_head_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="rotary dimension is 6 but a head has only 4"):
        dataclasses.replace(CONFIG, layers=(LayerConfig(RopeConfig(10_000.0, 6)),))


def test_a_window_of_no_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="sliding_window is 0"):
        dataclasses.replace(CONFIG, layers=(LayerConfig(RopeConfig(10_000.0, 4), 0),))


@pytest.mark.parametrize("scale", ["norm_eps", "attention_scale", "logits_divisor", "final_soft_cap"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e7])
def test_scales_must_be_positive_and_finite(scale: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(CONFIG, **{scale: value})
    assert caught.value.field == scale


def test_end_tokens_must_be_in_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match="eos_token_id is 100 but the vocabulary has 100 tokens"):
        dataclasses.replace(CONFIG, eos_token_ids=(2, 100))
