"""``headrace models``: list, fetch, show and remove models. Computes nothing with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.config import DEFAULT_MODEL
from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion
from headrace.core.units import format_bytes

if TYPE_CHECKING:
    from headrace.checkpoint.inventory import ListedModel, ModelFacts

_DESCRIPTION = """List the models on this machine and those with a short name (list, the default), fetch one (pull),
show what its files say (show), or delete one from the cache (rm)."""


def main(argv: Sequence[str]) -> int:
    """Run one action; raises ``ConfigError`` for a model or action that is not there."""
    parser = Parser("models", _DESCRIPTION, "[list | pull MODEL | show MODEL | rm MODEL]")
    parser.add_argument("action", nargs="?", default="list", help="list, pull, show or rm")
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"what to act on; pull and show take {DEFAULT_MODEL}")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    arguments = parser.parse(argv)
    action = _ACTIONS.get(arguments.action)
    if action is None:
        raise ConfigError(f"unknown action {arguments.action!r}{suggestion(arguments.action, _ACTIONS)}")
    text, result = action(arguments.model)
    if arguments.json:
        write_json(result, arguments.json)
    if arguments.json != "-":
        print(text)
    return 0


def _list(model: str | None) -> tuple[str, object]:
    from headrace.checkpoint.inventory import list_models
    from headrace.checkpoint.model_cache import ModelCache, cache_folder

    if model is not None:
        raise ConfigError(f"list takes no model but got {model!r}; show {model} shows one")
    models = list_models(ModelCache(cache_folder()))
    return render_list(models), models


def _pull(model: str | None) -> tuple[str, object]:
    from headrace.checkpoint.reference import resolve_model
    from headrace.cli.progress import terminal_progress

    path = resolve_model(model or DEFAULT_MODEL, terminal_progress())
    return str(path), {"model": model or DEFAULT_MODEL, "path": str(path)}


def _show(model: str | None) -> tuple[str, object]:
    from headrace.checkpoint.inventory import describe
    from headrace.checkpoint.model_cache import ModelCache, cache_folder
    from headrace.checkpoint.open import open_checkpoint
    from headrace.checkpoint.reference import locate_model

    path = locate_model(model or DEFAULT_MODEL, ModelCache(cache_folder()))
    facts = describe(open_checkpoint(path))
    return render_facts(facts), facts


def _remove(model: str | None) -> tuple[str, object]:
    from headrace.checkpoint.catalog import unknown_alias
    from headrace.checkpoint.inventory import remove_model
    from headrace.checkpoint.model_cache import ModelCache, cache_folder
    from headrace.checkpoint.reference import packaged_reference
    from headrace.engine.compiled_cache import COMPILED_FOLDER, CompiledCache

    if model is None:
        raise ConfigError("rm needs the model to remove; headrace models lists them")
    packaged = packaged_reference(model)
    if packaged is None and "/" not in model:
        raise unknown_alias(model)
    if packaged is None:
        raise ConfigError(f"{model} is not a model of the cache; rm deletes only what pull fetched, by its listed name")
    cache = ModelCache(cache_folder())
    path = cache.find(packaged)
    removed = remove_model(packaged, cache)
    if path is not None:
        CompiledCache(cache_folder() / COMPILED_FOLDER).forget(path)
    return f"removed {removed.name}, {format_bytes(removed.num_bytes)}", removed


_ACTIONS: Mapping[str, Callable[[str | None], tuple[str, object]]] = {
    "list": _list,
    "pull": _pull,
    "show": _show,
    "rm": _remove,
}


def render_list(models: Sequence[ListedModel]) -> str:
    rows = [("MODEL", "SIZE", "LICENCE", "WHERE")]
    rows += [
        (
            model.name,
            format_bytes(model.num_bytes),
            model.licence or "-",
            model.path or f"not here; headrace models pull {model.name}",
        )
        for model in models
    ]
    return _aligned(rows)


def render_facts(facts: ModelFacts) -> str:
    head = [
        ("path", facts.path),
        ("format", facts.format),
        ("tensors", f"{facts.num_tensors}"),
        ("parameters", f"{facts.num_parameters:,}"),
        ("size", format_bytes(facts.num_bytes)),
    ]
    types = [("TYPE", "TENSORS", "PARAMETERS", "SIZE", "")]
    types += [
        (
            share.dtype,
            f"{share.num_tensors}",
            f"{share.num_parameters:,}",
            format_bytes(share.num_bytes),
            "" if share.is_convertible else "cannot be computed with",
        )
        for share in facts.types
    ]
    return "\n\n".join([_aligned(head), _aligned(types), _aligned(list(facts.metadata.items()))]).rstrip()


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns two spaces apart, each as wide as its widest cell but the last."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
