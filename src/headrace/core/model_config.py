"""What a checkpoint's model is, as data: one ``ModelConfig`` of facts, from which every backend is built.

Owns the facts and their bounds, so that a lying file ends in a ``ConfigError`` before anything is
allocated. Does not know any file's spelling of a fact: that is ``headrace.model.families``.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.rope import RopeConfig


class Activation(enum.Enum):
    """Non-linearity of the gate in the feed-forward network."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class NormPlacement(enum.Enum):
    """Where a layer normalises: before attention and feed-forward, after them, or both."""

    PRE = "pre"
    POST = "post"
    PRE_AND_POST = "pre_and_post"


class QkNorm(enum.Enum):
    """What queries and keys are normalised over before they are rotated."""

    NONE = "none"
    PER_HEAD = "per_head"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What differs between the layers of one model.

    With a ``sliding_window`` of W, the token at position p attends to positions ``(p - W, p]``.
    """

    rope: RopeConfig
    sliding_window: int | None = None


COUNT_LIMITS = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "num_layers": 1 << 10,
    "num_heads": 1 << 10,
    "num_kv_heads": 1 << 10,
    "head_dim": 1 << 10,
    "intermediate_size": 1 << 20,
    "max_position": 1 << 27,
    "sliding_window": 1 << 27,
}
"""Largest believable value of each count (the smallest is 1), several times what any published model has."""


def check_count(fact: str, value: object, key: str | None = None) -> int:
    """``value`` as an integer in ``[1, COUNT_LIMITS[fact]]``, else ``ConfigError`` naming ``key`` (or the fact)."""
    name = key or fact
    limit = COUNT_LIMITS[fact]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer; got {type(value).__name__}", name)
    if not 1 <= value <= limit:
        raise ConfigError(f"{name} is {value} but must be between 1 and {limit}", name)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts of a decoder-only transformer; immutable and checked, raises ``ConfigError``.

    The residual stream starts at ``embedding_scale * embedding`` and every layer adds
    ``residual_scale * block(...)`` to it. Attention scores are ``attention_scale * q.k``, soft-capped by
    ``attention_soft_cap`` if set (``cap * tanh(score / cap)``); logits are ``hidden.head / logits_divisor``,
    soft-capped by ``final_soft_cap`` if set. A norm multiplies by ``norm_weight_offset + weight``.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    activation: Activation = Activation.SILU
    norm_placement: NormPlacement = NormPlacement.PRE
    norm_weight_offset: float = 0.0
    qk_norm: QkNorm = QkNorm.NONE
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_tied_embeddings: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float
    logits_divisor: float = 1.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("vocab_size", self.vocab_size)
        check_count("hidden_size", self.hidden_size)
        check_count("num_heads", self.num_heads)
        check_count("num_kv_heads", self.num_kv_heads)
        check_count("head_dim", self.head_dim)
        check_count("intermediate_size", self.intermediate_size)
        check_count("max_position", self.max_position)
        check_count("num_layers", self.num_layers)
        self._check_heads()
        self._check_scales()
        for layer in self.layers:
            if layer.sliding_window is not None:
                check_count("sliding_window", layer.sliding_window)
        for token_id in self.eos_token_ids:
            self._check_token_id("eos_token_id", token_id)
        if self.bos_token_id is not None:
            self._check_token_id("bos_token_id", self.bos_token_id)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def query_size(self) -> int:
        """Width of all queries of a token side by side."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all keys (or all values) of a token side by side."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Weights of the model, a tied output head counted once."""
        embedding = self.vocab_size * self.hidden_size
        head = 0 if self.has_tied_embeddings else embedding
        return embedding + head + self.hidden_size + self.num_layers * self._num_layer_parameters()

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values of one token in all layers."""
        return 2 * self.num_layers * self.kv_size * dtype_bytes

    def _num_layer_parameters(self) -> int:
        attention = 2 * self.hidden_size * (self.query_size + self.kv_size)
        biases = self.has_qkv_bias * (self.query_size + 2 * self.kv_size) + self.has_output_bias * self.hidden_size
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        num_norms = 4 if self.norm_placement is NormPlacement.PRE_AND_POST else 2
        qk_norms = {
            QkNorm.NONE: 0,
            QkNorm.PER_HEAD: 2 * self.head_dim,
            QkNorm.WHOLE: self.query_size + self.kv_size,
        }
        return attention + biases + feed_forward + num_norms * self.hidden_size + qk_norms[self.qk_norm]

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads is {self.num_heads}, which is not a multiple of num_kv_heads {self.num_kv_heads}",
                "num_kv_heads",
            )
        for layer in self.layers:
            if layer.rope.rotary_dim > self.head_dim:
                raise ConfigError(
                    f"the rotary dimension is {layer.rope.rotary_dim} but a head has only {self.head_dim}",
                    "rotary_dim",
                )

    def _check_scales(self) -> None:
        scales = {
            "norm_eps": self.norm_eps,
            "embedding_scale": self.embedding_scale,
            "residual_scale": self.residual_scale,
            "attention_scale": self.attention_scale,
            "logits_divisor": self.logits_divisor,
            "attention_soft_cap": self.attention_soft_cap,
            "final_soft_cap": self.final_soft_cap,
        }
        for name, value in scales.items():
            if value is not None and not (math.isfinite(value) and 0.0 < value <= 1e6):
                raise ConfigError(f"{name} is {value} but must be above 0 and at most 1e6", name)

    def _check_token_id(self, name: str, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise ConfigError(f"{name} is {token_id} but the vocabulary has {self.vocab_size} tokens", name)
