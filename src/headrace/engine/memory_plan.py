"""How much memory a model will take here, known before any of it is taken.

Owns the sum and the refusal. The figures come from the headers of the model's files and the settings; nothing is
loaded or allocated. What the plan leaves out is listed with ``MemoryPlan``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.core.units import format_bytes
from headrace.engine.limits import Limits, resolve_limits
from headrace.executor.kv_format import kv_format, kv_token_bytes
from headrace.executor.native_weights import WeightChoice, WeightFacts, weight_choice, weight_facts
from headrace.native.arena import plan_arena
from headrace.native.compiled import CompiledModel
from headrace.native.lowering import HIDDEN, lower

PROCESS_BYTES = 160 << 20
"""Interpreter, libraries and tokenizer of both processes: measured with the default model, rounded up."""

TOKEN_BYTES = 64
"""A token of a running sequence outside the KV cache: its integer, and its places in lists of both processes."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One line of a plan."""

    name: str
    num_bytes: int
    explanation: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What would be taken, and what there is.

    Left out are the bodies of requests that wait, which --max-num-queued-reqs and --max-body-bytes bound, and what
    grammars and the file cache take, which gives way.
    """

    model: str
    items: tuple[MemoryItem, ...]
    available_bytes: int
    limits: Limits

    @property
    def num_bytes(self) -> int:
        return sum(item.num_bytes for item in self.items)

    @property
    def fits(self) -> bool:
        return self.num_bytes <= self.available_bytes


def plan_memory(
    config: EngineConfig, source: Checkpoint | CompiledModel, model: ModelConfig, available_bytes: int
) -> MemoryPlan:
    """The plan for a model that was opened but not loaded.

    Raises ``ConfigError`` where not even the KV cache of one sequence fits beside the weights.
    """
    threads = config.threads or len(os.sched_getaffinity(0))
    weights, choice = _weights(config, source, model, threads)
    left_bytes = available_bytes - weights.num_bytes - PROCESS_BYTES
    if left_bytes <= 0:
        raise ConfigError(
            f"the weights of {config.model} take {format_bytes(weights.num_bytes)} and the processes around them "
            f"{format_bytes(PROCESS_BYTES)}, but only {format_bytes(max(0, available_bytes))} of memory are free; "
            "choose narrower weights with --dtype int8 or --dtype int4, or a smaller model",
            "dtype",
        )
    kv = kv_format(config.kv_cache_dtype, choice)
    limits = resolve_limits(config, model, kv_token_bytes(model, kv), left_bytes)
    items = (
        MemoryItem("weights", weights.num_bytes, _formats(weights)),
        MemoryItem("packing", weights.scratch_bytes, "while weights are loaded"),
        MemoryItem("KV cache", limits.kv_cache_bytes, f"{limits.num_blocks} blocks of {config.block_size} tokens"),
        MemoryItem("swap space", config.swap_space_bytes, "blocks in the host tier"),
        _activations(config, model, weights),
        MemoryItem("logits", 2 * 4 * config.max_num_seqs * model.vocab_size, f"{config.max_num_seqs} rows, twice"),
        MemoryItem("requests", TOKEN_BYTES * limits.num_blocks * config.block_size, "tokens of running sequences"),
        MemoryItem("processes", PROCESS_BYTES, "interpreter, libraries, tokenizer"),
    )
    return MemoryPlan(config.model, items, available_bytes, limits)


def check_fits(plan: MemoryPlan) -> None:
    """Raise ``ConfigError`` with the numbers, and the three flags that change most, for what does not fit."""
    if plan.fits:
        return
    parts = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in plan.items if item.num_bytes)
    raise ConfigError(
        f"{plan.model} would take {format_bytes(plan.num_bytes)} of memory ({parts}), but only "
        f"{format_bytes(plan.available_bytes)} are free; choose narrower weights with --dtype int8, a smaller cache "
        f"with --kv-cache-bytes (now {format_bytes(plan.limits.kv_cache_bytes)}) or --max-model-len (now "
        f"{plan.limits.max_model_len}), or smaller steps with --max-num-batched-tokens",
        "kv_cache_bytes",
    )


def _weights(
    config: EngineConfig, source: Checkpoint | CompiledModel, model: ModelConfig, threads: int
) -> tuple[WeightFacts, WeightChoice]:
    if isinstance(source, Checkpoint):
        # the torch backend keeps float32 where nothing else is asked for
        dtype = "float32" if (config.backend, config.dtype) == ("torch", "auto") else config.dtype
        choice = weight_choice(dtype)
        return weight_facts(source, model, choice, threads), choice
    packed = source.packed
    formats = {name: matrix.format for name, matrix in packed.matrices.items()}
    return (
        WeightFacts(formats, frozenset(packed.vectors), packed.num_bytes, 0),
        weight_choice(source.manifest.dtype),
    )


def _activations(config: EngineConfig, model: ModelConfig, weights: WeightFacts) -> MemoryItem:
    """The arena of intermediate values; it is planned as the engine itself will plan it."""
    listing = lower(model, weights.formats, weights.vector_names)
    row_bytes = plan_arena(listing.buffers, listing.operations, kept=[HIDDEN]).row_bytes
    num_tokens = config.max_num_batched_tokens
    return MemoryItem("activations", row_bytes * num_tokens, f"{num_tokens} tokens of {format_bytes(row_bytes)}")


def _formats(weights: WeightFacts) -> str:
    return "+".join(dict.fromkeys(weight_format.label for weight_format in weights.formats.values()))
