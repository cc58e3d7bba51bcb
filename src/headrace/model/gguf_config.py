"""A GGUF file's key-values as a ``ModelConfig``: what a key means, and what is not supported.

Some facts are not among the key-values and are told by which tensors there are: a tied output head and
the attention biases.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from headrace.core.errors import ConfigError
from headrace.core.model_config import LayerConfig, ModelConfig, check_count
from headrace.core.rope import RopeConfig
from headrace.model.families import GgufSpelling, family_of_gguf
from headrace.model.metadata import Metadata
from headrace.model.rope_parser import LayerKind, gguf_ropes

_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def parse_gguf_config(values: Mapping[str, object], tensor_names: Container[str]) -> ModelConfig:
    """The facts in a GGUF file's key-values; raises ``ConfigError`` for what is wrong or unsupported."""
    architecture = Metadata(values).text("general.architecture")
    if architecture is None:
        raise ConfigError("the GGUF file does not say its general.architecture", "general.architecture")
    family = family_of_gguf(architecture)
    spelling = family.gguf
    assert spelling is not None
    metadata = Metadata(values, f"{architecture}.")
    _refuse_unsupported(metadata)
    hidden_size = metadata.count("embedding_length", "hidden_size")
    num_heads = metadata.count("attention.head_count", "num_heads")
    head_dim = _head_dim(metadata, hidden_size, num_heads)
    num_layers = metadata.count("block_count", "num_layers")
    vocab_size = _vocab_size(values, metadata)
    scales = metadata.numbers(spelling.scales)
    is_width_scaled = num_layers == spelling.width_scaled_layers
    attention_scale = (hidden_size / num_heads if is_width_scaled else head_dim) ** -0.5
    tokenizer = Metadata(values, "tokenizer.ggml.")
    names = family.weight_names("gguf")
    return ModelConfig(
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=metadata.optional_count("attention.head_count_kv", "num_kv_heads") or num_heads,
        head_dim=head_dim,
        intermediate_size=metadata.count("feed_forward_length", "intermediate_size"),
        max_position=metadata.count("context_length", "max_position"),
        layers=_layers(metadata, spelling, gguf_ropes(metadata, spelling, head_dim), num_layers),
        norm_eps=metadata.required_number("attention.layer_norm_rms_epsilon"),
        activation=family.activation,
        norm_placement=family.norm_placement,
        qk_norm=family.qk_norm,
        has_qkv_bias=names.part(0, "q") + ".bias" in tensor_names,
        has_output_bias=names.part(0, "output") + ".bias" in tensor_names,
        has_tied_embeddings=names.head not in tensor_names,
        embedding_scale=scales.get("embedding_scale", family.embedding_scale(hidden_size)),
        residual_scale=scales.get("residual_scale", 1.0),
        attention_scale=scales.get("attention_scale", attention_scale),
        logits_divisor=scales.get("logits_divisor", 1.0),
        attention_soft_cap=scales.get("attention_soft_cap"),
        final_soft_cap=scales.get("final_soft_cap"),
        bos_token_id=next(iter(tokenizer.token_ids("bos_token_id", vocab_size)), None),
        eos_token_ids=_end_token_ids(tokenizer, vocab_size),
    )


def _refuse_unsupported(metadata: Metadata) -> None:
    if metadata.number("expert_count", 0) > 0:
        raise metadata.refusal("expert_count", "mixtures of experts are not supported")
    if not metadata.flag("attention.causal", True):
        raise metadata.refusal("attention.causal", "only causal attention is supported")


def _head_dim(metadata: Metadata, hidden_size: int, num_heads: int) -> int:
    head_dim = metadata.optional_count("attention.key_length", "head_dim") or max(hidden_size // num_heads, 1)
    value_dim = metadata.optional_count("attention.value_length", "head_dim") or head_dim
    if value_dim != head_dim:
        raise metadata.refusal("attention.value_length", f"must equal the key length, {head_dim}")
    return head_dim


def _vocab_size(values: Mapping[str, object], metadata: Metadata) -> int:
    if metadata.has("vocab_size"):
        return metadata.count("vocab_size", "vocab_size")
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise ConfigError("the GGUF file has neither a vocab_size nor tokenizer.ggml.tokens", "tokenizer.ggml.tokens")
    return check_count("vocab_size", len(tokens), "tokenizer.ggml.tokens")


def _end_token_ids(tokenizer: Metadata, vocab_size: int) -> tuple[int, ...]:
    """End of sequence, of turn and of message: each ends a reply."""
    ids = [token_id for key in _END_TOKEN_KEYS for token_id in tokenizer.token_ids(key, vocab_size)]
    return tuple(dict.fromkeys(ids))


def _layers(
    metadata: Metadata, spelling: GgufSpelling, ropes: Mapping[LayerKind, RopeConfig], num_layers: int
) -> tuple[LayerConfig, ...]:
    full = LayerConfig(ropes[LayerKind.FULL])
    key = "attention.sliding_window"
    if metadata.number(key, 0) == 0:
        return (full,) * num_layers
    pattern = metadata.value("attention.sliding_window_pattern")
    period = spelling.window_period if pattern is None else pattern
    if period is None:
        raise metadata.refusal(key, "sliding windows are not supported for this architecture")
    sliding = LayerConfig(ropes[LayerKind.SLIDING], metadata.count(key, "sliding_window"))
    return tuple(sliding if slides else full for slides in _sliding_layers(metadata, period, num_layers))


def _sliding_layers(metadata: Metadata, pattern: object, num_layers: int) -> list[bool]:
    """Which layers slide: all but each ``pattern``-th (1: all), or as the list ``pattern`` says."""
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 1:
        return [pattern == 1 or (layer + 1) % pattern != 0 for layer in range(num_layers)]
    if isinstance(pattern, list | np.ndarray) and len(pattern) == num_layers:
        return [bool(slides) for slides in pattern]
    raise metadata.refusal("attention.sliding_window_pattern", f"must be a period or {num_layers} truth values")
