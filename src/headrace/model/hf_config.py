"""A Hugging Face ``config.json`` as a ``ModelConfig``: what a key means, and what is not supported.

Families' names, keys and defaults are in ``families``; rope settings are read by ``rope_parser``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from headrace.core.errors import ConfigError
from headrace.core.model_config import Activation, LayerConfig, ModelConfig
from headrace.core.rope import RopeConfig, YarnScaling
from headrace.model.families import Family, family_of_hf
from headrace.model.metadata import Metadata
from headrace.model.rope_parser import LayerKind, hf_ropes

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}

_REFUSED_FLAGS = {
    "mlp_bias": "biases in the feed-forward network are not supported",
    "use_bidirectional_attention": "only causal attention is supported",
}

_REFUSED_KEYS = {
    "quantization_config": "quantised folders are not supported; use the original weights or a GGUF file",
    "num_local_experts": "mixtures of experts are not supported",
    "num_experts": "mixtures of experts are not supported",
    "clip_qkv": "clipped queries, keys and values are not supported",
}


def parse_hf_config(
    values: Mapping[str, object], generation: Mapping[str, object], tensor_names: Container[str]
) -> ModelConfig:
    """The facts in a parsed ``config.json``; raises ``ConfigError`` for what is wrong or unsupported.

    ``generation``, a parsed ``generation_config.json``, may name further end tokens. ``tensor_names``
    decides whether the output head is tied where the file does not say.
    """
    family = family_of_hf(_architecture(values))
    metadata = Metadata(values, defaults=family.hf.defaults)
    _refuse_unsupported(metadata)
    hidden_size = metadata.count("hidden_size", "hidden_size")
    num_heads = metadata.count("num_attention_heads", "num_heads")
    head_dim = metadata.optional_count("head_dim", "head_dim") or max(hidden_size // num_heads, 1)
    vocab_size = metadata.count("vocab_size", "vocab_size")
    trained_length = metadata.count("max_position_embeddings", "max_position")
    ropes = hf_ropes(metadata, head_dim, trained_length)
    scales = metadata.numbers(family.hf.scales)
    return ModelConfig(
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=metadata.optional_count("num_key_value_heads", "num_kv_heads") or num_heads,
        head_dim=head_dim,
        intermediate_size=metadata.count("intermediate_size", "intermediate_size"),
        max_position=_max_position(trained_length, ropes[LayerKind.FULL]),
        layers=_layers(metadata, ropes),
        norm_eps=metadata.number("rms_norm_eps", 1e-6),
        activation=_activation(metadata, family),
        norm_placement=family.norm_placement,
        norm_weight_offset=family.hf.norm_weight_offset,
        qk_norm=family.qk_norm,
        has_qkv_bias=metadata.flag(family.hf.qkv_bias_key, False),
        has_output_bias=family.hf.output_bias_key is not None and metadata.flag(family.hf.output_bias_key, False),
        has_tied_embeddings=_has_tied_embeddings(metadata, family, tensor_names),
        embedding_scale=scales.get("embedding_scale", family.embedding_scale(hidden_size)),
        residual_scale=scales.get("residual_scale", 1.0),
        attention_scale=scales.get("attention_scale", _attention_scale(metadata, family, head_dim)),
        logits_divisor=scales.get("logits_divisor", 1.0),
        attention_soft_cap=scales.get("attention_soft_cap"),
        final_soft_cap=scales.get("final_soft_cap"),
        bos_token_id=next(iter(metadata.token_ids("bos_token_id", vocab_size)), None),
        eos_token_ids=_end_token_ids(metadata, Metadata(generation), vocab_size),
    )


def _architecture(values: Mapping[str, object]) -> str:
    architectures = values.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    raise ConfigError("config.json must name the model's class in architectures", "architectures")


def _refuse_unsupported(metadata: Metadata) -> None:
    for key, reason in _REFUSED_FLAGS.items():
        if metadata.flag(key, False):
            raise metadata.refusal(key, reason)
    for key, reason in _REFUSED_KEYS.items():
        if metadata.has(key):
            raise metadata.refusal(key, reason)


def _activation(metadata: Metadata, family: Family) -> Activation:
    key = "hidden_activation" if metadata.has("hidden_activation") else "hidden_act"
    name = metadata.text(key)
    if name is None:
        return family.activation
    if name not in _ACTIVATIONS:
        raise metadata.refusal(key, f"supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _has_tied_embeddings(metadata: Metadata, family: Family, tensor_names: Container[str]) -> bool:
    has_head = family.weight_names("safetensors").head in tensor_names
    return metadata.flag("tie_word_embeddings", not has_head)


def _end_token_ids(metadata: Metadata, generation: Metadata, vocab_size: int) -> tuple[int, ...]:
    """Each id that either file says ends a sequence, once."""
    ids = metadata.token_ids("eos_token_id", vocab_size) + generation.token_ids("eos_token_id", vocab_size)
    return tuple(dict.fromkeys(ids))


def _attention_scale(metadata: Metadata, family: Family, head_dim: int) -> float:
    key = family.hf.query_scalar_key
    scalar = metadata.number(key, head_dim) if key else float(head_dim)
    if key and not scalar > 0:
        raise metadata.refusal(key, "must be above 0")
    return float(scalar**-0.5)


def _max_position(trained: int, rope: RopeConfig) -> int:
    """Trained context, stretched by YaRN where the file gives the context before stretching."""
    if isinstance(rope.scaling, YarnScaling):
        return max(trained, int(rope.scaling.factor * rope.scaling.original_max_position))
    return trained


def _layer_kinds(metadata: Metadata, num_layers: int) -> list[LayerKind]:
    """Which layers slide, by list, by pattern or by threshold, in that order of precedence."""
    if metadata.has("layer_types"):
        return _listed_layer_kinds(metadata, num_layers)
    if not metadata.flag("use_sliding_window", True) or metadata.value("sliding_window") is None:
        return [LayerKind.FULL] * num_layers
    if metadata.value("sliding_window_pattern") is not None:
        period = metadata.count("sliding_window_pattern", "num_layers")
        return [LayerKind.SLIDING if (i + 1) % period else LayerKind.FULL for i in range(num_layers)]
    first = metadata.number("max_window_layers", 0)
    return [LayerKind.SLIDING if i >= first else LayerKind.FULL for i in range(num_layers)]


def _listed_layer_kinds(metadata: Metadata, num_layers: int) -> list[LayerKind]:
    names = metadata.value("layer_types")
    known = {kind.value: kind for kind in LayerKind}
    if not isinstance(names, list) or len(names) != num_layers:
        raise metadata.refusal("layer_types", f"must be a list with one entry for each of the {num_layers} layers")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise metadata.refusal("layer_types", f"has the entry {str(name)[:40]!r}; supported are {', '.join(known)}")
    return [known[name] for name in names]


def _layers(metadata: Metadata, ropes: Mapping[LayerKind, RopeConfig]) -> tuple[LayerConfig, ...]:
    num_layers = metadata.count("num_hidden_layers", "num_layers")
    kinds = _layer_kinds(metadata, num_layers)
    full = LayerConfig(ropes[LayerKind.FULL])
    if LayerKind.SLIDING not in kinds:
        return (full,) * num_layers
    window = metadata.count("sliding_window", "sliding_window")
    sliding = LayerConfig(ropes[LayerKind.SLIDING], window)
    return tuple(sliding if kind is LayerKind.SLIDING else full for kind in kinds)
