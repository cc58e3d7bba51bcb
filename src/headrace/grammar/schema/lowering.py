"""JSON Schema lowered to the part of it that the grammar library enforces: exactly, or refused with the place.

What the library takes stays as it is. What branches is spread into alternatives (``flatten.py``), counting and names
become properties and patterns (``objects.py``, ``arrays.py``), formats become regexes. Nothing is weakened in silence:
what cannot be said is a refused finding, and whether that is an error or a warning is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.grammar.schema.arrays import lower_contains, lower_unique
from headrace.grammar.schema.document import Document
from headrace.grammar.schema.findings import Finding, Findings, Outcome
from headrace.grammar.schema.flatten import BRANCHING, UNEVALUATED, TooManyAlternatives, flatten
from headrace.grammar.schema.formats import LIBRARY_FORMATS, MAX_HOSTNAME_CHARS, format_regex
from headrace.grammar.schema.keywords import (
    ANNOTATIONS,
    HOLDS_LIST,
    HOLDS_MAP,
    PLAIN,
    SILENT,
    UNENFORCEABLE,
    Schema,
    pointer,
)
from headrace.grammar.schema.objects import lower_counts, lower_names

MAX_SCHEMAS = 50_000
"""Schemas that may be written; beyond that the source multiplies itself out of hand."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """``schema`` says what the source says, but for the refused ``findings``."""

    schema: Schema
    findings: list[Finding]

    @property
    def refused(self) -> list[Finding]:
        return [each for each in self.findings if each.outcome is Outcome.REFUSED]


def lower(source: Schema, max_properties: int) -> Lowered:
    """Lower a whole schema. Raises ``InvalidRequest`` with a pointer for what is no schema at all."""
    lowering = _Lowering(Document(source), max_properties)
    schema = lowering.run()
    return Lowered(schema, lowering.findings.all())


class _Lowering:
    def __init__(self, document: Document, max_properties: int) -> None:
        self._document = document
        self._max_properties = max_properties
        self._num_properties = 0
        self._num_schemas = 0
        self._names: dict[str, str] = {}  # pointer of a referred schema -> its name in the result
        self._pending: list[str] = []
        self.findings = Findings()

    def run(self) -> Schema:
        root = self._lower(self._document.root, "")
        definitions: dict[str, object] = {}
        while self._pending:
            place = self._pending.pop()
            definitions[self._names[place]] = self._lower(self._document.at(place), place)
        if isinstance(root, bool) or not definitions:
            return root
        return root | {"$defs": definitions}

    def _lower(self, schema: Schema, at: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        at = self._document.place_of(schema, at)
        self._count(at)
        if not (BRANCHING | UNEVALUATED) & schema.keys():
            return self._flat(schema, at)
        for key in (BRANCHING | UNEVALUATED) & schema.keys():
            self.findings.add(pointer(at, key), Outcome.REWRITTEN, "spread into alternatives")
        try:
            alternatives = flatten(schema, self._document, at)
        except TooManyAlternatives:
            key = min((BRANCHING | UNEVALUATED) & schema.keys())
            self.findings.add(pointer(at, key), Outcome.REFUSED, "it expands to too many alternatives; split it up")
            rest = {each: value for each, value in schema.items() if each not in BRANCHING | UNEVALUATED}
            return self._flat(rest, at)
        joined = [_joined([self._flat(flat, at) for flat in flats]) for flats in alternatives]
        if not joined:
            return False
        return joined[0] if len(joined) == 1 else {"anyOf": joined}

    def _flat(self, schema: dict[str, object], at: str) -> Schema:
        """A schema without branching keywords: each keyword by itself, what they add joined to the rest."""
        own: dict[str, object] = {}
        added: list[Schema] = []
        for key, value in schema.items():
            place = pointer(at, key)
            if key in PLAIN:
                self.findings.add(place, Outcome.ENFORCED)
                own[key] = value
            elif key in _NESTED:
                self.findings.add(place, Outcome.ENFORCED)
                own[key] = self._nested(key, value, place)
            elif key in _SPECIAL:
                added += _SPECIAL[key](self, schema, place)
            elif key == UNENFORCEABLE:
                self._refuse(str(value))
            elif key != SILENT and key not in ANNOTATIONS:
                self.findings.add(place, Outcome.ANNOTATION, "not a keyword of JSON Schema")
        return _joined([own, *added] if own else added)

    def _nested(self, key: str, value: object, place: str) -> object:
        if key in HOLDS_MAP:
            assert isinstance(value, dict)
            self._num_properties += len(value)
            if self._num_properties > self._max_properties:
                raise InvalidRequest(
                    f"#{place}: the schema has more than {self._max_properties} properties; split it up"
                )
            return {name: self._lower(each, pointer(place, name)) for name, each in value.items()}
        if key in HOLDS_LIST:
            assert isinstance(value, list)
            return [self._lower(each, pointer(place, index)) for index, each in enumerate(value)]
        assert isinstance(value, dict | bool)
        return self._lower(value, place)

    def _reference(self, schema: dict[str, object], place: str) -> list[Schema]:
        target = schema["$ref"]
        assert isinstance(target, str)
        self._check_progress(target, place)
        self.findings.add(place, Outcome.ENFORCED)
        if target not in self._names:
            self._names[target] = f"d{len(self._names)}"
            self._pending.append(target)
        return [{"$ref": f"#/$defs/{self._names[target]}"}]

    def _check_progress(self, target: str, place: str) -> None:
        """Refuse a schema that is itself again before any value has been read."""
        stack, seen = [target], set()
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            following = list(_in_place_references(self._document.at(current)))
            if target in following:
                raise InvalidRequest(f"#{place}: the schema refers to itself without anything in between; nothing fits")
            stack += following

    def _dynamic(self, schema: dict[str, object], place: str) -> list[Schema]:
        self.findings.add(place, Outcome.REFUSED, "what it refers to depends on who refers to it; use $ref")
        return []

    def _format(self, schema: dict[str, object], place: str) -> list[Schema]:
        name = schema["format"]
        if not isinstance(name, str):
            raise InvalidRequest(f"#{place} must be text")
        regex = format_regex(name)
        if name in LIBRARY_FORMATS:
            self.findings.add(place, Outcome.ENFORCED)
            return [{"format": name}]
        if regex is None:
            self.findings.add(place, Outcome.ANNOTATION, f"the format {name[:60]!r} is not one that is asserted here")
            return []
        self.findings.add(place, Outcome.REWRITTEN, "as a pattern")
        bounded: dict[str, object] = {"maxLength": MAX_HOSTNAME_CHARS} if name == "hostname" else {}
        return [bounded | {"pattern": regex}]

    def _counts(self, schema: dict[str, object], place: str) -> list[Schema]:
        if place.endswith("/maxProperties") and "minProperties" in schema:
            self.findings.add(place, Outcome.REWRITTEN, "together with minProperties")
            return []
        return self._settled(lower_counts(schema), place)

    def _property_names(self, schema: dict[str, object], place: str) -> list[Schema]:
        return self._settled(lower_names(schema["propertyNames"], self._document), place)

    def _unique(self, schema: dict[str, object], place: str) -> list[Schema]:
        return self._settled(lower_unique(schema), place)

    def _contains(self, schema: dict[str, object], place: str) -> list[Schema]:
        return [self._lower(each, place) for each in self._settled(lower_contains(schema), place)]

    def _settled(self, outcome: list[Schema] | str, place: str) -> list[Schema]:
        """Schemas to add, or a reason, which makes the keyword a refused one."""
        if isinstance(outcome, str):
            self.findings.add(place, Outcome.REFUSED, outcome)
            return []
        self.findings.add(place, Outcome.REWRITTEN)
        return outcome

    def _ignored(self, schema: dict[str, object], place: str) -> list[Schema]:
        self.findings.add(place, Outcome.ANNOTATION, "says nothing without its companion keyword")
        return []

    def _refuse(self, text: str) -> None:
        place, _, note = text.partition("\0")
        self.findings.add(place, Outcome.REFUSED, note)

    def _count(self, at: str) -> None:
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            raise InvalidRequest(f"#{at}: the schema expands to more than {MAX_SCHEMAS} parts; simplify it")


_NESTED = HOLDS_LIST - {"oneOf"} | {"properties", "patternProperties", "additionalProperties", "items"}

_SPECIAL: dict[str, Callable[[_Lowering, dict[str, object], str], list[Schema]]] = {
    "$ref": _Lowering._reference,
    "$dynamicRef": _Lowering._dynamic,
    "$recursiveRef": _Lowering._dynamic,
    "format": _Lowering._format,
    "minProperties": _Lowering._counts,
    "maxProperties": _Lowering._counts,
    "propertyNames": _Lowering._property_names,
    "uniqueItems": _Lowering._unique,
    "contains": _Lowering._contains,
    "minContains": _Lowering._ignored,
    "maxContains": _Lowering._ignored,
}


def _joined(parts: list[Schema]) -> Schema:
    """All of some schemas, as one where that is plain."""
    if any(part is False for part in parts):
        return False
    said = [part for part in parts if isinstance(part, dict) and part]
    if not said:
        return {}
    merged: dict[str, object] = {}
    rest: list[Schema] = []
    for part in said:
        if merged.keys().isdisjoint(part) and not _speak_together(merged, part):
            merged |= part
        else:
            rest.append(part)
    return merged | {"allOf": [*_list(merged.get("allOf")), *rest]} if rest else merged


_TOGETHER = (
    {"properties", "patternProperties", "additionalProperties", "$ref", "allOf", "anyOf"},
    {"prefixItems", "items"},
)
"""Keywords that read each other when they stand in one schema, or settle the order of properties."""


def _speak_together(first: dict[str, object], second: dict[str, object]) -> bool:
    return any(group & first.keys() and group & second.keys() for group in _TOGETHER)


def _list(value: object) -> list[Schema]:
    return value if isinstance(value, list) else []


def _in_place_references(schema: Schema) -> list[str]:
    """References reached without reading any part of the value."""
    if isinstance(schema, bool):
        return []
    found = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    for key in ("allOf", "anyOf", "oneOf"):
        for each in _list(schema.get(key)):
            found += _in_place_references(each)
    for key in ("not", "if", "then", "else"):
        branch = schema.get(key)
        if isinstance(branch, dict):
            found += _in_place_references(branch)
    return [each for each in found if isinstance(each, str)]
