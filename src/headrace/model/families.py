"""Model families as tables: how Hugging Face folders and GGUF files spell facts and weights.

A family here is what cannot be read from a file: where it normalises, what its keys mean when absent,
how its tensors are called. Adding a family is adding a row; what a key's value may be and how facts are
computed is known to the parsers, not here.

Sources: the ``config.json`` and tensor names of the published checkpoints, and for GGUF the "Standardized
tensor names" and "Standardized key-value pairs" of the GGUF specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.errors import ConfigError
from headrace.core.model_config import Activation, NormPlacement, QkNorm


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names in a file: ``layer_prefix`` takes the layer index, ``parts`` follow it.

    A part is stored as ``<name>.weight`` and, where the model has one, ``<name>.bias``. ``rope_factors``
    is an optional tensor that divides the rotary frequencies.
    """

    embedding: str
    final_norm: str
    head: str
    layer_prefix: str
    parts: Mapping[str, str]
    rope_factors: str | None = None

    def part(self, layer: int, part: str) -> str:
        return self.layer_prefix.format(layer) + self.parts[part]


_HF_MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}

_HF_NORMS = {
    NormPlacement.PRE: {
        "attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    },
    NormPlacement.POST: {
        "attention_post_norm": "post_attention_layernorm",
        "feed_forward_post_norm": "post_feedforward_layernorm",
    },
    NormPlacement.PRE_AND_POST: {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_post_norm": "post_feedforward_layernorm",
    },
}

NORM_PARTS: Mapping[NormPlacement, tuple[str, ...]] = {
    placement: tuple(names) for placement, names in _HF_NORMS.items()
}
"""The norms a layer has besides those of queries and keys."""

_HF_NAMES = {
    placement: WeightNames(
        embedding="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        head="lm_head.weight",
        layer_prefix="model.layers.{}.",
        parts=_HF_MATRICES | norms,
    )
    for placement, norms in _HF_NORMS.items()
}

_GGUF_NAMES = WeightNames(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    layer_prefix="blk.{}.",
    parts={
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "output": "attn_output",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "attention_norm": "attn_norm",
        "attention_post_norm": "post_attention_norm",
        "feed_forward_norm": "ffn_norm",
        "feed_forward_post_norm": "post_ffw_norm",
    },
    rope_factors="rope_freqs.weight",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HfSpelling:
    """How a family's ``config.json`` is read.

    ``defaults`` holds the values of keys that published files leave out. ``scales`` maps facts to keys.
    ``output_bias_key`` and ``qkv_bias_key`` name the flags of the attention biases. ``query_scalar_key``
    names s where attention scores are scaled by ``s ** -0.5`` rather than ``head_dim ** -0.5``.
    """

    architectures: tuple[str, ...]
    defaults: Mapping[str, object] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    qkv_bias_key: str = "attention_bias"
    output_bias_key: str | None = "attention_bias"
    query_scalar_key: str | None = None
    norm_weight_offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSpelling:
    """How a family's GGUF file is read; its norm weights always include the offset.

    ``has_permuted_rope``: rows of each query and key head are stored for rotation of neighbouring pairs
    ``(2i, 2i + 1)`` and must be reordered to ``(i, i + head_dim / 2)``. Where the file has a sliding
    window but no pattern, every layer but each ``window_period``-th has it (1: all have it; None: not
    supported). ``local_theta`` is the rope base of windowed layers if it differs. Models with
    ``width_scaled_layers`` layers scale attention by ``hidden_size / num_heads``; no key tells.
    """

    architecture: str
    scales: Mapping[str, str] = field(default_factory=dict)
    has_permuted_rope: bool = False
    window_period: int | None = None
    local_theta: float | None = None
    width_scaled_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row: facts that hold for every checkpoint of the family, and its spellings.

    ``gguf`` is ``None`` for a family whose GGUF files call themselves another one.
    """

    name: str
    hf: HfSpelling
    gguf: GgufSpelling | None
    activation: Activation = Activation.SILU
    norm_placement: NormPlacement = NormPlacement.PRE
    qk_norm: QkNorm = QkNorm.NONE
    has_width_scaled_embeddings: bool = False

    def weight_names(self, file_format: str) -> WeightNames:
        """Tensor names in a file of ``file_format``, ``"safetensors"`` or ``"gguf"``."""
        return _GGUF_NAMES if file_format == "gguf" else _HF_NAMES[self.norm_placement]

    def embedding_scale(self, hidden_size: int) -> float:
        """Factor on embeddings where the file gives none."""
        return math.sqrt(hidden_size) if self.has_width_scaled_embeddings else 1.0

    def has_permuted_rope(self, file_format: str) -> bool:
        """Whether query and key rows in the file have to be reordered, see ``GgufSpelling``."""
        return file_format == "gguf" and self.gguf is not None and self.gguf.has_permuted_rope


_SOFT_CAPS = {"attention_soft_cap": "attn_logit_softcapping", "final_soft_cap": "final_logit_softcapping"}

FAMILIES = (
    Family(
        name="llama",  # Llama 2 and 3, SmolLM2, and Mistral in GGUF files
        hf=HfSpelling(architectures=("LlamaForCausalLM",)),
        gguf=GgufSpelling(architecture="llama", has_permuted_rope=True, window_period=1),
    ),
    Family(
        name="mistral",
        hf=HfSpelling(architectures=("MistralForCausalLM",)),
        gguf=None,
    ),
    Family(
        name="qwen2",
        hf=HfSpelling(
            architectures=("Qwen2ForCausalLM",),
            defaults={"attention_bias": True, "use_sliding_window": False, "max_window_layers": 28},
            output_bias_key=None,
        ),
        gguf=GgufSpelling(architecture="qwen2"),
    ),
    Family(
        name="qwen3",
        hf=HfSpelling(
            architectures=("Qwen3ForCausalLM",),
            defaults={"head_dim": 128, "use_sliding_window": False, "max_window_layers": 28},
        ),
        gguf=GgufSpelling(architecture="qwen3"),
        qk_norm=QkNorm.PER_HEAD,
    ),
    Family(
        name="gemma3",
        hf=HfSpelling(
            architectures=("Gemma3ForCausalLM",),
            defaults={
                "head_dim": 256,
                "query_pre_attn_scalar": 256,
                "rope_theta": 1_000_000.0,
                "rope_local_base_freq": 10_000.0,
                "sliding_window": 4096,
                "sliding_window_pattern": 6,
            },
            scales=_SOFT_CAPS,
            query_scalar_key="query_pre_attn_scalar",
            norm_weight_offset=1.0,
        ),
        gguf=GgufSpelling(
            architecture="gemma3",
            scales=_SOFT_CAPS,
            window_period=6,
            local_theta=10_000.0,
            width_scaled_layers=62,  # Gemma 3 27B
        ),
        activation=Activation.GELU_TANH,
        norm_placement=NormPlacement.PRE_AND_POST,
        qk_norm=QkNorm.PER_HEAD,
        has_width_scaled_embeddings=True,
    ),
    Family(
        name="granite",
        hf=HfSpelling(
            architectures=("GraniteForCausalLM",),
            defaults={"attention_multiplier": 1.0},
            scales={
                "embedding_scale": "embedding_multiplier",
                "residual_scale": "residual_multiplier",
                "attention_scale": "attention_multiplier",
                "logits_divisor": "logits_scaling",
            },
        ),
        gguf=GgufSpelling(
            architecture="granite",
            scales={
                "embedding_scale": "embedding_scale",
                "residual_scale": "residual_scale",
                "attention_scale": "attention.scale",
                "logits_divisor": "logit_scale",
            },
            has_permuted_rope=True,
        ),
    ),
    Family(
        name="olmo2",
        hf=HfSpelling(architectures=("Olmo2ForCausalLM",), defaults={"rms_norm_eps": 1e-5}),
        gguf=GgufSpelling(architecture="olmo2"),
        norm_placement=NormPlacement.POST,
        qk_norm=QkNorm.WHOLE,
    ),
)


def family_named(name: str) -> Family:
    """The row called ``name``, as in ``ModelConfig.architecture``."""
    return _find("architecture", name, {f.name: f for f in FAMILIES})


def family_of_hf(architecture: str) -> Family:
    """The row of a name in ``config.json``'s ``architectures``."""
    return _find("architectures", architecture, {name: f for f in FAMILIES for name in f.hf.architectures})


def family_of_gguf(architecture: str) -> Family:
    """The row of a GGUF file's ``general.architecture``."""
    return _find("general.architecture", architecture, {f.gguf.architecture: f for f in FAMILIES if f.gguf})


def _find(key: str, name: str, rows: Mapping[str, Family]) -> Family:
    try:
        return rows[name]
    except KeyError:
        raise ConfigError(
            f"{key} is {name[:80]!r}, which is not supported; supported are {', '.join(rows)}", key
        ) from None
