"""Whether two schemas can never be satisfied together. Only proofs count: "not disjoint" means "not proven"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.grammar.schema.document import Document
from headrace.grammar.schema.keywords import Schema, type_of, types_of

MAX_DEPTH = 12


def are_disjoint(first: Schema, second: Schema, document: Document, depth: int = 0) -> bool:
    """Whether it is proven that no value satisfies both."""
    if first is False or second is False:
        return True
    if isinstance(first, bool) or isinstance(second, bool) or depth > MAX_DEPTH:
        return False
    for one, other in ((first, second), (second, first)):
        if any(are_disjoint(part, other, document, depth + 1) for part in _conjuncts(one, document)):
            return True
        for key in ("anyOf", "oneOf"):
            branches = one.get(key)
            if isinstance(branches, list) and all(are_disjoint(each, other, document, depth + 1) for each in branches):
                return True
    return _own_are_disjoint(first, second, document, depth)


def _conjuncts(schema: dict[str, object], document: Document) -> Iterator[Schema]:
    members = schema.get("allOf")
    if isinstance(members, list):
        yield from members
    ref = schema.get("$ref")
    if isinstance(ref, str):
        yield document.at(ref)


def _own_are_disjoint(first: dict[str, object], second: dict[str, object], document: Document, depth: int) -> bool:
    common = types_of(first) & types_of(second)
    values = _values(first), _values(second)
    if values[0] is not None and values[1] is not None:
        return not any(same_json(one, other) for one in values[0] for other in values[1])
    return all(_disjoint_as(kind, first, second, document, depth) for kind in common)


def _disjoint_as(
    kind: str, first: dict[str, object], second: dict[str, object], document: Document, depth: int
) -> bool:
    if kind == "object":
        return any(
            _disjoint_at(name, one, other, document, depth)
            for one, other in ((first, second), (second, first))
            for name in _names(one)
        )
    if kind == "array":
        return _ranges_are_apart(first, second, ("minItems",), ("maxItems",)) or _first_items_differ(
            first, second, document, depth
        )
    if kind == "string":
        return _ranges_are_apart(first, second, ("minLength",), ("maxLength",))
    if kind in ("integer", "number"):
        return _ranges_are_apart(first, second, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    return False


def _names(schema: dict[str, object]) -> list[str]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _disjoint_at(
    name: str, requires: dict[str, object], other: dict[str, object], document: Document, depth: int
) -> bool:
    """Whether a property that ``requires`` requires cannot suit both."""
    there = _property(other, name)
    return (there is not None and are_disjoint(_property(requires, name) or {}, there, document, depth + 1)) or (
        there is False
    )


def _property(schema: dict[str, object], name: str) -> Schema | None:
    """What a schema says of one property; ``None`` where that takes more than a look."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        found: Schema = properties[name]
        return found
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        return False
    return None


def _first_items_differ(first: dict[str, object], second: dict[str, object], document: Document, depth: int) -> bool:
    if not any(_number(each.get("minItems"), 0) >= 1 for each in (first, second)):
        return False
    items = [_first_item(each) for each in (first, second)]
    return are_disjoint(items[0], items[1], document, depth + 1)


def _first_item(schema: dict[str, object]) -> Schema:
    prefix = schema.get("prefixItems")
    if isinstance(prefix, list) and prefix:
        found: Schema = prefix[0]
        return found
    items = schema.get("items", True)
    return items if isinstance(items, dict | bool) else True


def _ranges_are_apart(
    first: dict[str, object], second: dict[str, object], lows: tuple[str, ...], highs: tuple[str, ...]
) -> bool:
    for one, other in ((first, second), (second, first)):
        for low in lows:
            for high in highs:
                bottom, top = one.get(low), other.get(high)
                if not isinstance(bottom, int | float) or not isinstance(top, int | float):
                    continue
                is_open = low.startswith("exclusive") or high.startswith("exclusive")
                if bottom > top or (bottom == top and is_open):
                    return True
    return False


def _number(value: object, default: int) -> int | float:
    return value if isinstance(value, int | float) else default


def _values(schema: dict[str, object]) -> list[object] | None:
    """The finite set of a schema's values that satisfy its own ``type``, if it has one."""
    if "const" in schema:
        values: list[object] = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        values = list(schema["enum"])  # type: ignore[call-overload]
    elif (constant := _constant(schema)) is not None:
        values = [constant]
    else:
        return None
    types = types_of(schema)
    return [value for value in values if type_of(value) in types]


def _constant(schema: dict[str, object]) -> str | None:
    """The one string that a type and a pattern such as ``^NAME$`` leave."""
    pattern = schema.get("pattern")
    if schema.get("type") != "string" or not isinstance(pattern, str):
        return None
    found = re.fullmatch(r"\^([A-Za-z0-9_ ]+)\$", pattern)
    return None if found is None else found[1]


def same_json(first: object, second: object) -> bool:
    """Equality of JSON values: ``1`` and ``1.0`` are one number, ``true`` is none."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(same_json(*pair) for pair in zip(first, second, strict=True))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_json(first[key], second[key]) for key in first)
    return first == second
