"""Facts of published configurations, and what happens to wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.core.model_config import Activation, ModelConfig, NormPlacement, QkNorm
from headrace.core.rope import LinearScaling, Llama3Scaling, YarnScaling
from headrace.model.config_parser import parse_model_config
from headrace.model.source import TensorSource


@dataclass
class FakeCheckpoint:
    """Metadata and tensor names; parsing reads no tensor."""

    format: str
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorSource] = field(default_factory=dict)
    generation_config: Mapping[str, object] = field(default_factory=dict)


def parse_hf(config: Mapping[str, object], tensors: tuple[str, ...] = (), **generation: object) -> ModelConfig:
    names = dict.fromkeys(tensors)
    return parse_model_config(FakeCheckpoint("safetensors", config, names, generation))  # type: ignore[arg-type]


def parse_gguf(metadata: Mapping[str, object], tensors: tuple[str, ...] = ()) -> ModelConfig:
    return parse_model_config(FakeCheckpoint("gguf", metadata, dict.fromkeys(tensors)))  # type: ignore[arg-type]


LLAMA_32_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}

MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}

QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

GEMMA3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}

GRANITE_2B = {
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_multiplier": 0.015625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "logits_scaling": 8.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49155,
}

GEMMA3_GGUF = {
    "general.architecture": "gemma3",
    "gemma3.context_length": 32768,
    "gemma3.embedding_length": 640,
    "gemma3.block_count": 18,
    "gemma3.feed_forward_length": 2048,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 512,
    "gemma3.rope.freq_base": 1000000.0,
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "<end_of_turn>"],
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.eot_token_id": 3,
}


def test_llama_3_2_is_read() -> None:
    config = parse_hf(LLAMA_32_1B)
    assert config.architecture == "llama"
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (16, 32, 8, 64)
    assert config.layers[0].rope.scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    assert config.layers[0].rope.theta == 500000.0
    assert config.has_tied_embeddings
    assert not config.has_qkv_bias
    assert config.max_position == 131072
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.num_parameters == 1_235_814_400


def test_every_layer_of_mistral_has_its_window() -> None:
    config = parse_hf(MISTRAL_7B)
    assert {layer.sliding_window for layer in config.layers} == {4096}
    assert config.head_dim == 128
    assert config.num_parameters == 7_241_732_096


def test_qwen2_has_biases_and_no_window_unless_it_says_so() -> None:
    config = parse_hf(QWEN25_05B)
    assert config.has_qkv_bias
    assert not config.has_output_bias
    assert {layer.sliding_window for layer in config.layers} == {None}
    assert config.num_parameters == 494_032_768


def test_qwen2_windows_begin_at_max_window_layers() -> None:
    config = parse_hf(QWEN25_05B | {"use_sliding_window": True, "sliding_window": 99})
    assert [layer.sliding_window for layer in config.layers] == [None] * 21 + [99] * 3


def test_gemma3_alternates_local_and_global_layers() -> None:
    config = parse_hf(GEMMA3_1B)
    assert [layer.sliding_window for layer in config.layers[:7]] == [512] * 5 + [None, 512]
    assert [layer.rope.theta for layer in config.layers[4:7]] == [1e4, 1e6, 1e4]
    assert config.norm_placement is NormPlacement.PRE_AND_POST
    assert config.qk_norm is QkNorm.PER_HEAD
    assert config.activation is Activation.GELU_TANH
    assert config.embedding_scale == pytest.approx(math.sqrt(1152))
    assert config.attention_scale == pytest.approx(1 / 16)
    assert config.norm_weight_offset == 1.0
    assert config.has_tied_embeddings, "no flag and no head tensor"
    assert config.attention_soft_cap is None
    assert config.eos_token_ids == (1, 106)
    assert config.num_parameters == 999_885_952


def test_gemma3_global_layers_alone_are_scaled() -> None:
    config = parse_hf(GEMMA3_1B | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.layers[5].rope.scaling == LinearScaling(8.0)
    assert config.layers[0].rope.scaling is None


def test_granite_has_four_multipliers() -> None:
    config = parse_hf(GRANITE_2B)
    assert config.embedding_scale == 12.0
    assert config.residual_scale == 0.22
    assert config.attention_scale == 0.015625
    assert config.logits_divisor == 8.0


def test_soft_caps_are_read() -> None:
    config = parse_hf(GEMMA3_1B | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})
    assert (config.attention_soft_cap, config.final_soft_cap) == (50.0, 30.0)


def test_rope_parameters_are_read_flat_and_per_kind_of_layer() -> None:
    flat = parse_hf(MISTRAL_7B | {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert flat.layers[0].rope.theta == 5e5
    nested = {"full_attention": {"rope_theta": 7e5}, "sliding_attention": {"rope_theta": 3e4}}
    config = parse_hf(GEMMA3_1B | {"rope_parameters": nested})
    assert [layer.rope.theta for layer in config.layers[4:6]] == [3e4, 7e5]


def test_yarn_stretches_the_context() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = parse_hf(QWEN25_05B | {"rope_scaling": yarn})
    assert config.max_position == 131072
    scaling = config.layers[0].rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_a_part_of_the_head_may_rotate() -> None:
    assert parse_hf(MISTRAL_7B | {"partial_rotary_factor": 0.5}).layers[0].rope.rotary_dim == 64


def test_layer_types_overrule_patterns() -> None:
    kinds = ["full_attention"] * 25 + ["sliding_attention"]
    config = parse_hf(GEMMA3_1B | {"layer_types": kinds})
    assert [layer.sliding_window for layer in config.layers] == [None] * 25 + [512]


def test_a_head_tensor_means_untied_where_the_file_says_nothing() -> None:
    assert not parse_hf(GEMMA3_1B, ("lm_head.weight",)).has_tied_embeddings


def test_end_tokens_of_the_generation_config_are_added_and_impossible_ones_left_out() -> None:
    config = parse_hf(MISTRAL_7B, eos_token_id=[2, 7, 99_999])
    assert config.eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architectures"),
        ({"architectures": []}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "2048"}, "hidden_size"),
        ({"hidden_size": 1 << 60}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_kv_heads"),
        ({"vocab_size": True}, "vocab_size"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-5}, "norm_eps"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2.0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
        ({"head_dim": 63}, "rotary_dim"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 16}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 16}, "sliding_window"),
    ],
)
def test_what_is_wrong_or_unsupported_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_hf(LLAMA_32_1B | change)
    assert caught.value.field == field


def test_an_unknown_architecture_is_told_what_is_supported() -> None:
    with pytest.raises(ConfigError, match=r"'Phi3ForCausalLM', which is not supported; supported are LlamaForC.*Olmo2"):
        parse_hf(LLAMA_32_1B | {"architectures": ["Phi3ForCausalLM"]})


def test_gemma3_gguf_is_read() -> None:
    config = parse_gguf(GEMMA3_GGUF)
    assert config.vocab_size == 4
    assert [layer.sliding_window for layer in config.layers[:7]] == [512] * 5 + [None, 512]
    assert [layer.rope.theta for layer in config.layers[4:7]] == [1e4, 1e6, 1e4]
    assert config.norm_weight_offset == 0.0, "the file's norms include it"
    assert config.attention_scale == pytest.approx(1 / 16)
    assert config.has_tied_embeddings
    assert config.eos_token_ids == (1, 3)


def test_gemma3_27b_gguf_scales_attention_by_its_width() -> None:
    large = GEMMA3_GGUF | {
        "gemma3.block_count": 62,
        "gemma3.embedding_length": 5376,
        "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16,
        "gemma3.attention.key_length": 128,
        "gemma3.attention.value_length": 128,
    }
    assert parse_gguf(large).attention_scale == pytest.approx(168**-0.5)


def test_a_gguf_window_pattern_may_be_a_list_or_a_period() -> None:
    key = "gemma3.attention.sliding_window_pattern"
    listed = parse_gguf(GEMMA3_GGUF | {key: np.array([True, False] * 9)})
    period = parse_gguf(GEMMA3_GGUF | {key: 2})
    assert listed.layers == period.layers
    assert [layer.sliding_window for layer in listed.layers[:3]] == [512, None, 512]


def test_biases_and_the_head_of_a_gguf_file_are_told_by_its_tensors() -> None:
    config = parse_gguf(GEMMA3_GGUF, ("output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias"))
    assert config.has_qkv_bias
    assert config.has_output_bias
    assert not config.has_tied_embeddings


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"general.architecture": "mamba"}, "general.architecture"),
        ({"general.architecture": None}, "general.architecture"),
        ({"gemma3.block_count": 1 << 31}, "gemma3.block_count"),
        ({"gemma3.attention.head_count_kv": np.array([1, 2])}, "gemma3.attention.head_count_kv"),
        ({"gemma3.attention.value_length": 128}, "gemma3.attention.value_length"),
        ({"gemma3.attention.layer_norm_rms_epsilon": None}, "gemma3.attention.layer_norm_rms_epsilon"),
        ({"gemma3.attention.sliding_window_pattern": np.array([True])}, "gemma3.attention.sliding_window_pattern"),
        ({"gemma3.attention.sliding_window_pattern": 0}, "gemma3.attention.sliding_window_pattern"),
        ({"gemma3.expert_count": 8}, "gemma3.expert_count"),
        ({"gemma3.attention.causal": False}, "gemma3.attention.causal"),
        ({"gemma3.rope.scaling.type": "longrope"}, "gemma3.rope.scaling.type"),
        ({"gemma3.rope.scaling.type": "linear"}, "gemma3.rope.scaling.factor"),
        ({"gemma3.rope.scaling.finetuned": False}, "gemma3.rope.scaling.finetuned"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
    ],
)
def test_what_is_wrong_in_a_gguf_file_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gguf(GEMMA3_GGUF | change)
    assert caught.value.field == field


def test_a_window_in_a_gguf_family_without_windows_is_refused() -> None:
    renamed = {key.replace("gemma3", "olmo2"): value for key, value in GEMMA3_GGUF.items()}
    with pytest.raises(ConfigError, match="sliding windows are not supported"):
        parse_gguf(renamed | {"general.architecture": "olmo2"})


def test_partly_rotating_heads_are_refused_where_rows_are_permuted() -> None:
    renamed = {key.replace("gemma3", "llama"): value for key, value in GEMMA3_GGUF.items()}
    llama = renamed | {"general.architecture": "llama"}
    assert parse_gguf(llama | {"llama.rope.dimension_count": 256}).layers[0].rope.rotary_dim == 256
    with pytest.raises(ConfigError, match="only whole heads, 256 dimensions"):
        parse_gguf(llama | {"llama.rope.dimension_count": 128})


def test_an_unknown_file_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="'onnx'; supported are safetensors and gguf"):
        parse_model_config(FakeCheckpoint("onnx", {}))


WEIRD_VALUES = [None, True, 0, -1, 1 << 63, 10**400, 0.0, -0.5, math.nan, math.inf, 1e308, "", "x" * 5000, [], [[]], {}]


@pytest.mark.parametrize(
    "base", [LLAMA_32_1B, MISTRAL_7B, QWEN25_05B, GEMMA3_1B, GRANITE_2B], ids=lambda c: c["architectures"][0]
)
def test_any_weird_value_is_read_or_refused_but_never_crashes(base: dict[str, object]) -> None:
    nested = {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        "rope_parameters": {"full_attention": {"rope_type": "llama3", "factor": 2.0}, "sliding_attention": {}},
    }
    for key in [*base, *nested, "layer_types", "partial_rotary_factor", "num_experts"]:
        for value in WEIRD_VALUES:
            assert_read_or_refused(lambda config=base | {key: value}: parse_hf(config))
    for section, content in nested.items():
        for key in [*content, "beta_fast", "attention_factor", "low_freq_factor"]:
            for value in WEIRD_VALUES:
                assert_read_or_refused(lambda config=base | {section: content | {key: value}}: parse_hf(config))


def test_any_weird_value_in_a_gguf_file_is_read_or_refused() -> None:
    for key in [*GEMMA3_GGUF, "gemma3.rope.scaling.factor", "gemma3.attention.sliding_window_pattern"]:
        for value in [*WEIRD_VALUES, np.array([1.5]), np.zeros((0,), np.int32)]:
            changed = GEMMA3_GGUF | {
                "gemma3.rope.scaling.type": "linear",
                "gemma3.rope.scaling.factor": 2.0,
                key: value,
            }
            assert_read_or_refused(lambda metadata=changed: parse_gguf(metadata))


def assert_read_or_refused(parse: Callable[[], ModelConfig]) -> None:
    refusal = refusal_of(parse)
    if refusal is not None:
        assert refusal.field
        assert len(refusal.message) < 1000


def refusal_of(parse: Callable[[], ModelConfig]) -> ConfigError | None:
    try:
        assert parse().num_parameters < 1 << 60
    except ConfigError as error:
        return error
    return None
