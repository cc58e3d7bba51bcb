"""Keywords about an object's names and their number, as required, absent and patterned properties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from headrace.grammar.schema.document import Document
from headrace.grammar.schema.formats import format_regex
from headrace.grammar.schema.keywords import ANNOTATIONS, Schema
from headrace.grammar.schema.regexes import length

MAX_SUBSETS = 128

Outcome = list[Schema] | str
"""Schemas that say the same, or why there are none."""


def lower_counts(schema: dict[str, object]) -> Outcome:
    """``minProperties`` and ``maxProperties`` beside named properties that may be absent."""
    least, most = _whole(schema.get("minProperties"), 0), _whole(schema.get("maxProperties"), None)
    assert least is not None
    required = set(_strings(schema.get("required")))
    named = _map(schema.get("properties"))
    optional = [name for name, each in named.items() if name not in required and each is not False]
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        return _closed_counts(optional, len(required), least, most)
    counts: dict[str, object] = {"minProperties": least} if least > len(required) else {}
    if most is not None:
        counts["maxProperties"] = most
    return _open_counts(optional, required, counts)


def _open_counts(optional: list[str], required: set[str], counts: dict[str, object]) -> Outcome:
    """``counts`` where names that are not listed may come too: the library can count those beside fixed ones."""
    if not counts:
        return [{}]
    if not optional:
        return [_with_names(counts, required)]
    if 2 ** len(optional) > MAX_SUBSETS:
        return f"with {len(optional)} optional properties and open names there are too many ways to count"
    return [_any_of(_exactly(present, optional, counts, required) for present in _subsets(optional))]


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


def _exactly(
    present: tuple[str, ...], optional: list[str], counts: dict[str, object], required: set[str]
) -> dict[str, object]:
    """Of the optional names just these are there; then the library can count the rest."""
    absent = {name: False for name in optional if name not in present}
    found: dict[str, object] = {"type": "object", **counts, "required": sorted(required.union(present))}
    return found | {"properties": absent} if absent else found


_NO_OBJECT: Schema = {"type": ["null", "boolean", "number", "string", "array"]}


def _with_names(counts: dict[str, object], required: set[str]) -> Schema:
    return counts if not required else {**counts, "required": sorted(required)}


def _closed_counts(optional: list[str], num_required: int, least: int, most: int | None) -> Outcome:
    found: list[Schema] = []
    missing = least - num_required
    room = None if most is None else most - num_required
    if missing > len(optional) or (room is not None and room < 0):
        return [_NO_OBJECT]
    if missing > 0:
        if math.comb(len(optional), missing) > MAX_SUBSETS:
            return f"{missing} of {len(optional)} optional properties can be chosen in too many ways"
        found.append(_any_of({"required": list(each)} for each in itertools.combinations(optional, missing)))
    if room is not None and room < len(optional):
        if math.comb(len(optional), room) > MAX_SUBSETS:
            return f"{room} of {len(optional)} optional properties can be chosen in too many ways"
        absent = itertools.combinations(optional, len(optional) - room)
        found.append(_any_of({"properties": dict.fromkeys(each, False)} for each in absent))
    return found


def lower_names(names: object, document: Document) -> Outcome:
    """``propertyNames`` as patterns that names must match."""
    if isinstance(names, bool):
        return [{}] if names else [{"additionalProperties": False}]
    found: list[Schema] = []
    for key, value in _map(names).items():
        if key == "$ref" and isinstance(value, str):
            inner = lower_names(document.at(value), document)
        else:
            inner = _names_of(key, value)
        if isinstance(inner, str):
            return inner
        found += inner
    return found


def _names_of(key: str, value: object) -> Outcome:
    """What one keyword of ``propertyNames`` says of names, which are always strings."""
    match key, value:
        case "pattern", str():
            return [_only_names(value)]
        case "enum", list():
            allowed = {each: True for each in value if isinstance(each, str)}
            return [{"properties": allowed, "additionalProperties": False}]
        case "const", _:
            only = {value: True} if isinstance(value, str) else {}
            return [{"properties": only, "additionalProperties": False}]
        case (("minLength" | "maxLength"), int()):
            return [_only_names(length(value, None) if key == "minLength" else length(0, value))]
        case "format", str():
            regex = format_regex(value)
            return [] if regex is None else [_only_names(regex)]
        case "type", _:
            return [] if value == "string" or "string" in _strings(value) else [{"additionalProperties": False}]
    return [] if key in ANNOTATIONS else f"{key} on names cannot be written as a pattern"


def _only_names(regex: str) -> Schema:
    return {"patternProperties": {regex: True}, "additionalProperties": False}


def _any_of(alternatives: Iterable[dict[str, object]]) -> Schema:
    return {"anyOf": [*alternatives, _NO_OBJECT]}


def _whole(value: object, default: int | None) -> int | None:
    return value if isinstance(value, int) else default


def _strings(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
