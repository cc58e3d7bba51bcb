"""What is known of models without computing with them: those in the cache, and the facts of one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from headrace.checkpoint.catalog import ALIASES, PackagedModel, alias_of
from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.file_names import shown
from headrace.checkpoint.model_cache import ModelCache
from headrace.checkpoint.quantization import convertible_types
from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that can be named; ``path`` is ``None`` if it would have to be downloaded first.

    ``num_bytes`` is what it takes on disk, or would download.
    """

    name: str
    reference: str
    num_bytes: int
    path: str | None
    licence: str


@dataclass(frozen=True, slots=True)
class TypeShare:
    """How much of a model is stored as one type."""

    dtype: str
    is_convertible: bool
    num_tensors: int
    num_parameters: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's files say of themselves; ``types`` by falling size, ``metadata`` shortened to one line each."""

    path: str
    format: str
    num_tensors: int
    num_parameters: int
    num_bytes: int
    types: tuple[TypeShare, ...]
    metadata: dict[str, str]


def list_models(cache: ModelCache) -> list[ListedModel]:
    """The models in the cache, then those of the catalog that are not."""
    cached = cache.entries()
    here = {entry.model.reference for entry in cached}
    listed = [_listed(entry.model, entry.num_bytes, str(entry.path)) for entry in cached]
    listed += [_listed(m, m.download_bytes, None) for m in ALIASES.values() if m.reference not in here]
    return listed


def remove_model(model: PackagedModel, cache: ModelCache) -> ListedModel:
    """Delete a model, damaged or not, from the cache and say what it was. Raises ``ConfigError`` if there is none."""
    num_bytes = cache.held_bytes(model)
    if num_bytes is not None:
        cache.remove(model)
        return _listed(model, num_bytes, str(cache.folder(model)))
    names = ", ".join(alias_of(entry.model) or entry.model.reference for entry in cache.entries())
    held = f"the cache holds {names}" if names else "the cache is empty"
    raise ConfigError(f"{model.reference} is not in the cache {cache.root}; {held}", "model")


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of an opened model; costs nothing but a walk over its tensors' names."""
    tensors = checkpoint.tensors.values()
    by_type = defaultdict(list)
    for tensor in tensors:
        by_type[tensor.dtype].append(tensor)
    shares = [
        TypeShare(
            dtype=dtype.label,
            is_convertible=dtype in convertible_types(),
            num_tensors=len(group),
            num_parameters=sum(tensor.num_elements for tensor in group),
            num_bytes=sum(tensor.num_bytes for tensor in group),
        )
        for dtype, group in by_type.items()
    ]
    return ModelFacts(
        path=str(checkpoint.path),
        format=checkpoint.format,
        num_tensors=len(checkpoint.tensors),
        num_parameters=checkpoint.num_parameters,
        num_bytes=checkpoint.num_bytes,
        types=tuple(sorted(shares, key=lambda share: -share.num_bytes)),
        metadata={shown(key): _in_short(value) for key, value in checkpoint.metadata.items()},
    )


def _listed(model: PackagedModel, num_bytes: int, path: str | None) -> ListedModel:
    return ListedModel(alias_of(model) or model.reference, model.reference, num_bytes, path, model.licence)


def _in_short(value: object) -> str:
    """One line for any metadata value; long lists by their length."""
    if isinstance(value, np.ndarray):
        return f"{len(value)} x {value.dtype}"
    if isinstance(value, list) and len(value) > 8:
        return f"{len(value)} x {type(value[0]).__name__}"
    return shown(value if isinstance(value, str) else str(value))
