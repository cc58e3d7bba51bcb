"""The keywords of JSON Schema by what they hold, and the words this package shares."""

from __future__ import annotations

from typing import Final

Json = dict[str, object] | list[object] | str | int | float | bool | None
Schema = dict[str, object] | bool

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")

HOLDS_SCHEMA: Final = frozenset(
    {
        *("not", "if", "then", "else", "items", "additionalItems", "additionalProperties", "contains"),
        *("propertyNames", "unevaluatedItems", "unevaluatedProperties"),
    }
)
HOLDS_LIST: Final = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
HOLDS_MAP: Final = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"])

ANNOTATIONS: Final = frozenset(
    {
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "$defs", "definitions"),
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    }
)
"""Keywords that say nothing about which values are valid."""

PLAIN: Final = frozenset(
    {
        *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "minItems", "maxItems", "required"),
    }
)
"""Keywords that the library enforces as they stand."""

COUNTS: Final = frozenset(
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"]
)

SUBJECT: Final = {
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    "minItems": "array",
    "maxItems": "array",
    "items": "array",
    "prefixItems": "array",
    "contains": "array",
    "uniqueItems": "array",
    "unevaluatedItems": "array",
    "required": "object",
    "properties": "object",
    "patternProperties": "object",
    "additionalProperties": "object",
    "propertyNames": "object",
    "minProperties": "object",
    "maxProperties": "object",
    "dependentRequired": "object",
    "dependentSchemas": "object",
    "unevaluatedProperties": "object",
}
"""The type of value each keyword speaks of; it lets values of all other types pass."""

EXTRA_PROPERTY: Final = "\0extra"
"""A condition that needs company to be written: some property is outside these names. ``(names, place)``."""

SOME_ITEM: Final = "\0item"
"""Likewise: some item does not satisfy a schema. ``(schema, place)``."""

SILENT: Final = "\0silent"
"""Marks a schema from inside a negation: what it speaks of does not count as evaluated."""

UNENFORCEABLE: Final = "\0unenforceable"
"""A keyword that stands for a condition nothing here can express: its value names the keyword and its place."""


def pointer(at: str, *steps: str | int) -> str:
    """A JSON pointer (RFC 6901) one or more steps below ``at``."""
    return at + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def type_of(value: object) -> str:
    """The schema type of a JSON value; whole numbers are integers however they are written."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def types_of(schema: dict[str, object]) -> frozenset[str]:
    """The types a schema's own ``type``, ``const`` and ``enum`` allow, with ``integer`` beside ``number``."""
    types = frozenset(TYPES)
    given = schema.get("type")
    if isinstance(given, str | list):
        named = {given} if isinstance(given, str) else set(given)
        types &= named | ({"integer"} if "number" in named else set())
    if "const" in schema:
        types &= {type_of(schema["const"])}
    values = schema.get("enum")
    if isinstance(values, list):
        types &= {type_of(value) for value in values}
    return types
