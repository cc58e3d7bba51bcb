"""The opposite of a schema, as a union of schemas.

Exact where it can be written with keywords that can be enforced; where not, the alternative carries
``UNENFORCEABLE`` and whoever needs it refuses, with the place of the keyword that could not be turned round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from headrace.core.errors import InvalidRequest
from headrace.grammar.schema.document import Document
from headrace.grammar.schema.formats import LIBRARY_FORMATS, format_regex
from headrace.grammar.schema.keywords import (
    ANNOTATIONS,
    EXTRA_PROPERTY,
    SOME_ITEM,
    SUBJECT,
    TYPES,
    UNENFORCEABLE,
    Schema,
    pointer,
    type_of,
)
from headrace.grammar.schema.regexes import none_of

MAX_REFERENCES = 16

Alternatives = list[dict[str, object]]


def complement(schema: Schema, document: Document, at: str, num_references: int = 0) -> Alternatives:
    """Schemas of which a value satisfies at least one exactly if it does not satisfy ``schema``.

    ``at`` is where ``schema`` stands, for messages.
    """
    if isinstance(schema, bool):
        return [] if schema else [{}]
    found: Alternatives = []
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS or keyword in ("then", "else", "minContains", "maxContains"):
            continue
        place = pointer(at, keyword)
        if keyword == "$ref" and isinstance(value, str) and num_references < MAX_REFERENCES:
            found += complement(document.at(value), document, value, num_references + 1)
        elif keyword in _COMPLEMENTS:
            found += _COMPLEMENTS[keyword](schema, value, place)
        elif keyword in SUBJECT or keyword.startswith(("$", "\0")):
            found.append(_unenforceable(SUBJECT.get(keyword), place))
    return found


def _unenforceable(subject: str | None, place: str) -> dict[str, object]:
    condition: dict[str, object] = {} if subject is None else {"type": subject}
    return condition | {UNENFORCEABLE: f"{place}\0its opposite cannot be written"}


def _type(schema: dict[str, object], value: object, place: str) -> Alternatives:
    named = {value} if isinstance(value, str) else set(value) if isinstance(value, list) else set()
    others = [name for name in TYPES if name not in named and name not in ("integer", "number")]
    found: Alternatives = [{"type": others}] if others else []
    if "number" not in named:
        if "integer" in named:
            found.append(_unenforceable("number", place))
        else:
            found.append({"type": "number"})
    return found


def _values(schema: dict[str, object], value: object, place: str) -> Alternatives:
    """None of some values: other types, and of each type the rest."""
    values = value if isinstance(value, list) and place.endswith("/enum") else [value]
    by_type: dict[str, list[object]] = {}
    for each in values:
        kind = type_of(each)
        by_type.setdefault("number" if kind == "integer" else kind, []).append(each)
    untouched = [name for name in TYPES if name not in by_type and name != "integer"]
    found: Alternatives = [{"type": untouched}] if untouched else []
    for kind, excluded in by_type.items():
        found += _other_values(kind, excluded, place)
    return found


def _other_values(kind: str, excluded: list[object], place: str) -> Alternatives:
    if kind == "boolean":
        return [{"enum": [each]} for each in (True, False) if each not in excluded]
    if kind == "string":
        return [{"type": "string", "pattern": none_of(str(each) for each in excluded)}]
    if kind == "number":
        return _gaps(each for each in excluded if isinstance(each, int | float))
    if kind == "array":
        return [{"type": "array", "minItems": 1}] if excluded == [[]] else [_unenforceable("array", place)]
    if kind == "object":
        return [{"type": "object", "minProperties": 1}] if excluded == [{}] else [_unenforceable("object", place)]
    return []


def _gaps(values: Iterable[int | float]) -> Alternatives:
    """The numbers between, below and above some."""
    points = sorted(set(values))
    below: Alternatives = [{"type": "number", "exclusiveMaximum": points[0]}]
    above: Alternatives = [{"type": "number", "exclusiveMinimum": points[-1]}]
    between: Alternatives = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in itertools.pairwise(points)
    ]
    return [*below, *between, *above]


def _bound(kind: str, opposite: str, step: int) -> Callable[[dict[str, object], object, str], Alternatives]:
    def turned(schema: dict[str, object], value: object, place: str) -> Alternatives:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"#{place} must be a number; it is {type(value).__name__}")
        limit = value + step
        if step and limit < 0:
            return []  # fewer than none
        return [{"type": kind, opposite: limit}]

    return turned


def _required(schema: dict[str, object], value: object, place: str) -> Alternatives:
    names = value if isinstance(value, list) else []
    return [{"type": "object", "properties": {name: False}} for name in names]


def _properties(schema: dict[str, object], value: object, place: str) -> Alternatives:
    properties = value if isinstance(value, dict) else {}
    return [
        {"type": "object", "required": [name], "properties": {name: {"not": each}}}
        for name, each in properties.items()
        if each is not True and each != {}
    ]


def _items(schema: dict[str, object], value: object, place: str) -> Alternatives:
    if value is True or value == {}:
        return []
    prefix = schema.get("prefixItems")
    num_prefix = len(prefix) if isinstance(prefix, list) else 0
    if value is False:
        return [{"type": "array", "minItems": num_prefix + 1}]
    if num_prefix:
        return [_unenforceable("array", place)]
    return [{"type": "array", "minItems": 1, SOME_ITEM: (value, place)}]


def _prefix_items(schema: dict[str, object], value: object, place: str) -> Alternatives:
    items = value if isinstance(value, list) else []
    return [
        {"type": "array", "minItems": index + 1, "prefixItems": [*[True] * index, {"not": each}]}
        for index, each in enumerate(items)
        if each is not True and each != {}
    ]


def _additional_properties(schema: dict[str, object], value: object, place: str) -> Alternatives:
    if value is True or value == {}:
        return []
    if value is not False or schema.get("patternProperties"):
        return [_unenforceable("object", place)]
    properties = schema.get("properties")
    return [{"type": "object", EXTRA_PROPERTY: (list(properties) if isinstance(properties, dict) else [], place)}]


def _contains(schema: dict[str, object], value: object, place: str) -> Alternatives:
    if schema.get("minContains", 1) != 1 or "maxContains" in schema:
        return [_unenforceable("array", place)]
    return [{"type": "array", "items": {"not": value}}]


def _all_of(schema: dict[str, object], value: object, place: str) -> Alternatives:
    return [{"not": each} for each in _list(value)]


def _any_of(schema: dict[str, object], value: object, place: str) -> Alternatives:
    return [{"allOf": [{"not": each} for each in _list(value)]}]


def _one_of(schema: dict[str, object], value: object, place: str) -> Alternatives:
    """None of the branches, or two of them."""
    branches = _list(value)
    none: Alternatives = [{"allOf": [{"not": each} for each in branches]}]
    return none + [{"allOf": list(pair)} for pair in itertools.combinations(branches, 2)]


def _format(schema: dict[str, object], value: object, place: str) -> Alternatives:
    """Nothing for an annotation, which no value fails."""
    is_asserted = isinstance(value, str) and (value in LIBRARY_FORMATS or format_regex(value) is not None)
    return [_unenforceable("string", place)] if is_asserted else []


def _not(schema: dict[str, object], value: object, place: str) -> Alternatives:
    return [{"allOf": [value]}]


def _if(schema: dict[str, object], value: object, place: str) -> Alternatives:
    found: Alternatives = []
    if "then" in schema:
        found.append({"allOf": [value, {"not": schema["then"]}]})
    if "else" in schema:
        found.append({"allOf": [{"not": value}, {"not": schema["else"]}]})
    return found


def _dependent_required(schema: dict[str, object], value: object, place: str) -> Alternatives:
    dependencies = value if isinstance(value, dict) else {}
    return [
        {"type": "object", "required": [name], "properties": {needed: False}}
        for name, names in dependencies.items()
        for needed in names
    ]


def _dependent_schemas(schema: dict[str, object], value: object, place: str) -> Alternatives:
    dependencies = value if isinstance(value, dict) else {}
    return [{"type": "object", "required": [name], "allOf": [{"not": each}]} for name, each in dependencies.items()]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


_COMPLEMENTS: dict[str, Callable[[dict[str, object], object, str], Alternatives]] = {
    "type": _type,
    "enum": _values,
    "const": _values,
    "minimum": _bound("number", "exclusiveMaximum", 0),
    "maximum": _bound("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": _bound("number", "maximum", 0),
    "exclusiveMaximum": _bound("number", "minimum", 0),
    "minLength": _bound("string", "maxLength", -1),
    "maxLength": _bound("string", "minLength", 1),
    "minItems": _bound("array", "maxItems", -1),
    "maxItems": _bound("array", "minItems", 1),
    "minProperties": _bound("object", "maxProperties", -1),
    "maxProperties": _bound("object", "minProperties", 1),
    "required": _required,
    "properties": _properties,
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalProperties": _additional_properties,
    "contains": _contains,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "format": _format,
    "not": _not,
    "if": _if,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
}
