"""What weights a model has, under this package's own names, and of which stored tensors each is made.

Everything a file claims about names and shapes is compared with the ``ModelConfig`` here, before any memory is
taken. Knows nothing of how weights are kept in memory: torch tensors and packed matrices are made elsewhere.

Names: ``embedding``, ``final_norm``, ``head`` (if not tied), ``rope_factors`` (if the file has them), and
per layer ``layers.<i>.`` with ``qkv``, ``qkv_bias``, ``q_norm``, ``k_norm``, ``output``, ``output_bias``,
``gate_up``, ``down``, ``attention_norm``, ``attention_post_norm``, ``feed_forward_norm``,
``feed_forward_post_norm``, as far as the model has them. Queries, keys and values are one matrix, gate and up
another: one large product is faster than three small ones.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig, QkNorm
from headrace.model.families import NORM_PARTS, WeightNames, family_named
from headrace.model.source import CheckpointSource

IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn_rot_embd.weight")
"""Tensors of old files that only repeat what the rope settings say."""


class WeightKind(enum.Enum):
    """How a weight is kept: in the wanted dtype, or in float32 with or without the family's norm offset."""

    LINEAR = "linear"
    NORM = "norm"
    ROPE_FACTORS = "rope_factors"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the file; the rows of ``num_permuted_heads`` heads (0: none) have to be reordered."""

    name: str
    shape: tuple[int, ...]
    num_permuted_heads: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model, made of the stored ``parts`` one below the other."""

    name: str
    parts: tuple[StoredTensor, ...]
    kind: WeightKind = WeightKind.LINEAR

    @property
    def size(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts)


def list_weights(checkpoint: CheckpointSource, config: ModelConfig) -> list[Weight]:
    """Every weight ``config`` implies, each checked against the file.

    Raises ``ConfigError`` naming tensors that are missing, unknown or of another shape.
    """
    wanted = list(_weights(checkpoint, config))
    _check_names(checkpoint, config, wanted)
    _check_shapes(checkpoint, wanted)
    return wanted


def _weights(checkpoint: CheckpointSource, config: ModelConfig) -> Iterator[Weight]:
    """Every weight ``config`` implies, under the file's names."""
    family = family_named(config.architecture)
    names = family.weight_names(checkpoint.format)
    table = (config.vocab_size, config.hidden_size)
    yield Weight("embedding", (StoredTensor(names.embedding, table),))
    yield Weight("final_norm", (StoredTensor(names.final_norm, (config.hidden_size,)),), WeightKind.NORM)
    if not config.has_tied_embeddings:
        yield Weight("head", (StoredTensor(names.head, table),))
    if names.rope_factors is not None and names.rope_factors in checkpoint.tensors:
        shape = (config.layers[0].rope.rotary_dim // 2,)
        yield Weight("rope_factors", (StoredTensor(names.rope_factors, shape),), WeightKind.ROPE_FACTORS)
    is_permuted = family.has_permuted_rope(checkpoint.format)
    for layer in range(config.num_layers):
        yield from _attention_weights(config, names, layer, is_permuted)
        yield from _feed_forward_weights(config, names, layer)
        yield from _norm_weights(config, names, layer)


def _attention_weights(config: ModelConfig, names: WeightNames, layer: int, is_permuted: bool) -> Iterator[Weight]:
    hidden = config.hidden_size
    prefix = f"layers.{layer}."
    rows = {"q": config.query_size, "k": config.kv_size, "v": config.kv_size}
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": 0} if is_permuted else dict.fromkeys(rows, 0)

    def stored(suffix: str, *columns: int) -> tuple[StoredTensor, ...]:
        return tuple(
            StoredTensor(names.part(layer, part) + suffix, (rows[part], *columns), heads[part]) for part in rows
        )

    yield Weight(prefix + "qkv", stored(".weight", hidden))
    if config.has_qkv_bias:
        yield Weight(prefix + "qkv_bias", stored(".bias"))
    output = names.part(layer, "output")
    yield Weight(prefix + "output", (StoredTensor(output + ".weight", (hidden, config.query_size)),))
    if config.has_output_bias:
        yield Weight(prefix + "output_bias", (StoredTensor(output + ".bias", (hidden,)),))


def _feed_forward_weights(config: ModelConfig, names: WeightNames, layer: int) -> Iterator[Weight]:
    inner = (config.intermediate_size, config.hidden_size)
    gate_up = tuple(StoredTensor(names.part(layer, part) + ".weight", inner) for part in ("gate", "up"))
    yield Weight(f"layers.{layer}.gate_up", gate_up)
    yield Weight(f"layers.{layer}.down", (StoredTensor(names.part(layer, "down") + ".weight", inner[::-1]),))


def _norm_weights(config: ModelConfig, names: WeightNames, layer: int) -> Iterator[Weight]:
    sizes = dict.fromkeys(NORM_PARTS[config.norm_placement], config.hidden_size)
    match config.qk_norm:
        case QkNorm.PER_HEAD:
            sizes |= {"q_norm": config.head_dim, "k_norm": config.head_dim}
        case QkNorm.WHOLE:
            sizes |= {"q_norm": config.query_size, "k_norm": config.kv_size}
        case QkNorm.NONE:
            pass
    for part, size in sizes.items():
        stored = StoredTensor(names.part(layer, part) + ".weight", (size,))
        yield Weight(f"layers.{layer}.{part}", (stored,), WeightKind.NORM)


def _check_names(checkpoint: CheckpointSource, config: ModelConfig, wanted: list[Weight]) -> None:
    known = {part.name for weight in wanted for part in weight.parts}
    present = set(checkpoint.tensors)
    names = family_named(config.architecture).weight_names(checkpoint.format)
    unneeded = {name for name in present - known if name.endswith(IGNORED_SUFFIXES)}
    if config.has_tied_embeddings:
        unneeded.add(names.head)  # some files store the tied table twice
    _refuse_tensors("lacks tensors the configuration implies", known - present)
    _refuse_tensors("has tensors that are not supported", present - known - unneeded)


def _refuse_tensors(complaint: str, names: set[str]) -> None:
    if names:
        listed = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
        raise ConfigError(f"the checkpoint {complaint} ({len(names)}): {listed}", min(names))


def _check_shapes(checkpoint: CheckpointSource, wanted: list[Weight]) -> None:
    for part in (part for weight in wanted for part in weight.parts):
        shape = tuple(checkpoint.tensors[part.name].shape)
        if shape != part.shape:
            raise ConfigError(
                f"tensor {part.name} has shape {list(shape)} but the configuration implies {list(part.shape)}",
                part.name,
            )
