"""Writes a reference model as a float32 GGUF file, following the GGUF specification and its converters' habits:
query and key rows of llama and granite permuted for neighbouring pairs, Gemma's norms with 1 added, Llama 3's
rope scaling as a tensor of divisors.
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel

_ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama"}
_PERMUTED = {"llama", "granite"}

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(model: PreTrainedModel, path: Path) -> Path:
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    _write_facts(writer, config)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if architecture in _PERMUTED and ".q_proj." in name:
            values = _permute(values, config.num_attention_heads)
        if architecture in _PERMUTED and ".k_proj." in name:
            values = _permute(values, config.num_key_value_heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        writer.add_tensor(_gguf_name(name, architecture), np.ascontiguousarray(values))
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, config.head_dim))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_facts(writer: gguf.GGUFWriter, config) -> None:
    writer.add_token_list([f"<{index}>" for index in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
    _write_rope(writer, config.rope_parameters.get("full_attention", config.rope_parameters))
    if config.model_type == "gemma3_text":
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _write_rope(writer: gguf.GGUFWriter, rope) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _gguf_name(name: str, architecture: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    own = _NAMES[part]
    if part == "post_attention_layernorm" and architecture in {"gemma3", "olmo2"}:
        own = "post_attention_norm"
    return f"blk.{layer}.{own}.{suffix}"


def _permute(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Each head's rows from halves ``(i, i + d / 2)`` to neighbours ``(2i, 2i + 1)``."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _llama3_divisors(rope, head_dim: int) -> np.ndarray:
    """What Llama 3's rule divides each pair's frequency by, written out case by case."""
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        if turns > rope["high_freq_factor"]:
            divisors.append(1.0)
        elif turns < rope["low_freq_factor"]:
            divisors.append(rope["factor"])
        else:
            kept = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            divisors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return np.array(divisors, np.float32)
