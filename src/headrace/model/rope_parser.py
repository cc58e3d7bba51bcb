"""Rope settings of a checkpoint, in every spelling in circulation, as ``RopeConfig`` per kind of layer.

``config.json`` says either ``rope_theta`` with ``rope_scaling``, or ``rope_parameters``, flat or per kind
of layer. GGUF says ``rope.freq_base`` with ``rope.scaling.*``; its Llama 3 scaling is not in the metadata
but a tensor, which is the weights' business.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

from headrace.core.rope import LinearScaling, Llama3Scaling, RopeConfig, RopeScaling, YarnScaling
from headrace.model.families import GgufSpelling
from headrace.model.metadata import Metadata


class LayerKind(enum.Enum):
    """Whether a layer attends to everything before it or to a sliding window; values are those of the files."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"


def hf_ropes(metadata: Metadata, head_dim: int, max_position: int) -> Mapping[LayerKind, RopeConfig]:
    """Ropes of a ``config.json``; raises ``ConfigError`` for a scaling rule that is not supported."""
    parameters = metadata.section("rope_parameters")
    if parameters is None:
        return _hf_ropes_of_flat_keys(metadata, head_dim, max_position)
    ropes = {}
    for kind in LayerKind:
        section = parameters.section(kind.value) or parameters
        scaling = _hf_scaling(section, max_position)
        ropes[kind] = _hf_rope(section, scaling, _hf_rotary_dim(section, metadata, head_dim))
    return ropes


def _hf_ropes_of_flat_keys(metadata: Metadata, head_dim: int, max_position: int) -> Mapping[LayerKind, RopeConfig]:
    section = metadata.section("rope_scaling")
    scaling = None if section is None else _hf_scaling(section, max_position)
    rotary_dim = _hf_rotary_dim(metadata, metadata, head_dim)
    full = _hf_rope(metadata, scaling, rotary_dim)
    if metadata.value("rope_local_base_freq") is None:
        return {LayerKind.FULL: full, LayerKind.SLIDING: full}
    local = RopeConfig(metadata.required_number("rope_local_base_freq"), rotary_dim)
    return {LayerKind.FULL: full, LayerKind.SLIDING: local}


def _hf_rope(section: Metadata, scaling: RopeScaling | None, rotary_dim: int) -> RopeConfig:
    return RopeConfig(section.number("rope_theta", 10_000.0), rotary_dim, scaling)


def _hf_rotary_dim(section: Metadata, metadata: Metadata, head_dim: int) -> int:
    share = section.number("partial_rotary_factor", metadata.number("partial_rotary_factor", 1.0))
    if not 0.0 < share <= 1.0:
        raise metadata.refusal("partial_rotary_factor", "must be above 0 and at most 1")
    return int(head_dim * share)


def _hf_scaling(section: Metadata, max_position: int) -> RopeScaling | None:
    key = "rope_type" if section.has("rope_type") else "type"
    match section.text(key):
        case None | "default":
            return None
        case "linear":
            return LinearScaling(section.required_number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=section.required_number("factor"),
                low_freq_factor=section.required_number("low_freq_factor"),
                high_freq_factor=section.required_number("high_freq_factor"),
                original_max_position=section.count("original_max_position_embeddings", "max_position"),
            )
        case "yarn":
            return _hf_yarn(section, max_position)
        case _:
            raise section.refusal(key, "supported are default, linear, llama3 and yarn")


def _hf_yarn(section: Metadata, max_position: int) -> YarnScaling:
    for key in ("mscale", "mscale_all_dim"):
        if section.has(key):
            raise section.refusal(key, "supported for yarn are factor, attention_factor, beta_fast and beta_slow")
    if not section.flag("truncate", True):
        raise section.refusal("truncate", "only true is supported")
    factor = section.required_number("factor")
    return YarnScaling(
        factor=factor,
        original_max_position=section.optional_count("original_max_position_embeddings", "max_position")
        or max_position,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        attention_factor=section.number("attention_factor", _yarn_attention_factor(factor)),
    )


def gguf_ropes(metadata: Metadata, spelling: GgufSpelling, head_dim: int) -> Mapping[LayerKind, RopeConfig]:
    """Ropes of a GGUF file; local layers with a base of their own are never scaled."""
    rotary_dim = metadata.optional_count("rope.dimension_count", "head_dim") or head_dim
    if spelling.has_permuted_rope and rotary_dim != head_dim:
        raise metadata.refusal("rope.dimension_count", f"only whole heads, {head_dim} dimensions, can rotate here")
    full = RopeConfig(metadata.number("rope.freq_base", 10_000.0), rotary_dim, _gguf_scaling(metadata))
    if spelling.local_theta is None:
        return {LayerKind.FULL: full, LayerKind.SLIDING: full}
    local = RopeConfig(metadata.number("rope.freq_base_swa", spelling.local_theta), rotary_dim)
    return {LayerKind.FULL: full, LayerKind.SLIDING: local}


def _gguf_scaling(metadata: Metadata) -> RopeScaling | None:
    if not metadata.flag("rope.scaling.finetuned", True):
        raise metadata.refusal("rope.scaling.finetuned", "models without rotary positions are not supported")
    match metadata.text("rope.scaling.type"):
        case None if metadata.has("rope.scale_linear"):
            return LinearScaling(metadata.required_number("rope.scale_linear"))
        case None | "none":
            return None
        case "linear":
            return LinearScaling(metadata.required_number("rope.scaling.factor"))
        case "yarn":
            factor = metadata.required_number("rope.scaling.factor")
            return YarnScaling(
                factor=factor,
                original_max_position=metadata.count("rope.scaling.original_context_length", "max_position"),
                beta_fast=metadata.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=metadata.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=metadata.number("rope.scaling.yarn_attn_factor", _yarn_attention_factor(factor)),
            )
        case _:
            raise metadata.refusal("rope.scaling.type", "supported are none, linear and yarn")


def _yarn_attention_factor(factor: float) -> float:
    """The paper's fit of the best temperature, arXiv:2309.00071 section 3.4."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
