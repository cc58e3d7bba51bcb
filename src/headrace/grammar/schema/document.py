"""A schema document: every spelling of older drafts in today's, and what each reference points at.

References stay inside the document; ``$id``, ``$anchor`` and JSON pointers are followed as draft 2020-12 says. The
normal form of a ``$ref`` is the pointer of its target from the root, whatever base it was relative to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import unquote, urljoin

from headrace.core.errors import InvalidRequest
from headrace.grammar.schema.keywords import (
    COUNTS,
    HOLDS_LIST,
    HOLDS_MAP,
    HOLDS_SCHEMA,
    TYPES,
    Schema,
    pointer,
)

T = TypeVar("T")

_ROOT = "https://schema.invalid/root"


class Document:
    """One document. ``root`` is its normal form. Raises ``InvalidRequest`` with a pointer for what is no schema."""

    def __init__(self, source: Schema) -> None:
        self._source = source
        self._resources: dict[str, str] = {}  # absolute URI -> pointer
        self._bases: dict[str, str] = {}  # pointer -> base URI
        self._schemas: dict[str, Schema] = {}
        self._places: dict[int, str] = {}  # id of a normal form, all of which are kept
        self._index(source, "", _ROOT)
        self.root = self.at("")

    def at(self, place: str) -> Schema:
        """The normal form of the schema at a pointer. Raises ``InvalidRequest`` if there is none."""
        if place not in self._schemas:
            found = self._raw(place)
            if place not in self._bases:
                self._index(found, place, self._nearest_base(place))
            normal = self._schemas[place] = self._normal(found, place)
            self._places[id(normal)] = place
        return self._schemas[place]

    def place_of(self, schema: dict[str, object], otherwise: str) -> str:
        """Where a schema stands; ``otherwise`` for one that was made up on the way."""
        return self._places.get(id(schema), otherwise)

    def _raw(self, place: str) -> object:
        value: object = self._source
        for step in place.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise InvalidRequest(f"#{place} is referred to but is not in the schema")
        return value

    def _nearest_base(self, place: str) -> str:
        while place not in self._bases:
            place = place.rpartition("/")[0]
        return self._bases[place]

    # -- bases and anchors, read once over the document as it was written

    def _index(self, schema: object, at: str, base: str) -> None:
        if isinstance(schema, dict):
            name = schema.get("$id", schema.get("id"))
            if isinstance(name, str) and not name.startswith("#"):
                base = urljoin(base, name).partition("#")[0]
            elif isinstance(name, str):
                self._resources[urljoin(base, name)] = at
            self._resources.setdefault(base, at)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(key), str):
                    self._resources[f"{base}#{schema[key]}"] = at
            for place, child in _children(schema, at):
                self._index(child, place, base)
        self._bases[at] = base

    def _target(self, ref: str, at: str) -> str:
        """The pointer of what ``ref`` at ``at`` refers to."""
        base = self._bases[at]
        uri = base + ref if ref.startswith("#") else urljoin(base, ref)  # urljoin would lose a URN
        resource, _, fragment = uri.partition("#")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            place = self._resources.get(f"{resource}#{fragment}")
        elif resource in self._resources:
            place = self._resources[resource] + fragment
        else:
            place = None
        if place is None:
            raise InvalidRequest(
                f"{pointer('#' + at, '$ref')}: {ref[:200]!r} is not in this schema, and nothing is fetched; copy it "
                "into $defs"
            )
        return place

    # -- one schema in normal form; its subschemas are normal too

    def _normal(self, schema: object, at: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequest(f"#{at}: a schema must be an object, true or false; this is {_shown(schema)}")
        normal = {key: self._value(key, value, at) for key, value in schema.items()}
        _modernise(normal)
        _check(normal, at)
        return normal

    def _value(self, key: str, value: object, at: str) -> object:
        below = pointer(at, key)
        if key in _REFERENCES:
            return self._target(_expected(value, str, "text", below), at)
        if key in HOLDS_MAP:
            names = _expected(value, dict, "an object", below)
            return {name: self.at(pointer(below, name)) for name in names}
        if key == "dependencies":
            return self._dependencies(_expected(value, dict, "an object", below), below)
        if key in HOLDS_LIST or (key == "items" and isinstance(value, list)):
            schemas = _expected(value, list, "a list of schemas", below)
            return [self.at(pointer(below, index)) for index in range(len(schemas))]
        if key in HOLDS_SCHEMA:
            return self.at(below)
        return int(value) if key in COUNTS and isinstance(value, float) and value.is_integer() else value

    def _dependencies(self, value: dict[str, object], below: str) -> dict[str, object]:
        """Names of other properties stay as they are; the rest are schemas."""
        return {name: each if isinstance(each, list) else self.at(pointer(below, name)) for name, each in value.items()}


_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def _expected(value: object, kind: type[T], what: str, at: str) -> T:
    """``value``, which must be of a kind. Raises ``InvalidRequest`` with its place."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"#{at} must be {what}; it is {_shown(value)}")
    return value


def _children(schema: dict[str, object], at: str) -> list[tuple[str, object]]:
    """Places and values of the schemas directly inside one."""
    found: list[tuple[str, object]] = []
    for key, value in schema.items():
        below = pointer(at, key)
        if isinstance(value, dict) and (key in HOLDS_MAP or key == "dependencies"):
            found += [(pointer(below, name), each) for name, each in value.items()]
        elif isinstance(value, list) and (key in HOLDS_LIST or key == "items"):
            found += [(pointer(below, index), each) for index, each in enumerate(value)]
        elif key in HOLDS_SCHEMA:
            found.append((below, value))
    return found


def _modernise(schema: dict[str, object]) -> None:
    """Rewrite what drafts 3 to 2019-09 spelled otherwise."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    schema.pop("additionalItems", None)  # without a list of items it never said anything
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and bound in schema:
                schema[exclusive] = schema.pop(bound)
    dependencies = schema.pop("dependencies", None)
    if isinstance(dependencies, dict):
        required = {name: each for name, each in dependencies.items() if isinstance(each, list)}
        schemas = {name: each for name, each in dependencies.items() if not isinstance(each, list)}
        if required:
            schema["dependentRequired"] = {**required, **_map(schema.get("dependentRequired"))}
        if schemas:
            schema["dependentSchemas"] = {**schemas, **_map(schema.get("dependentSchemas"))}


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _check(schema: dict[str, object], at: str) -> None:
    """Refuse values that no draft allows where guessing what was meant would be wrong."""
    for keyword, check in _CHECKS.items():
        if keyword in schema:
            check(schema[keyword], pointer("#" + at, keyword))


def _check_type(value: object, at: str) -> None:
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and name in TYPES for name in names):
        raise InvalidRequest(f"{at} is {_shown(value)} but must be among {', '.join(TYPES)}")


def _check_enum(value: object, at: str) -> None:
    if not isinstance(value, list):
        raise InvalidRequest(f"{at} must be a list; it is {_shown(value)}")
    if not value:
        raise InvalidRequest(f"{at} is empty, so nothing can satisfy it")


def _check_count(value: object, at: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{at} must be a whole number; it is {_shown(value)}")


def _check_required(value: object, at: str) -> None:
    if isinstance(value, bool):  # draft 3 put it on the property
        raise InvalidRequest(f"{at} must be a list of names on the object, not a boolean")
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(f"{at} must be a list of names; it is {_shown(value)}")


_CHECKS: Final[dict[str, Callable[[object, str], None]]] = {
    "type": _check_type,
    "enum": _check_enum,
    "required": _check_required,
    **dict.fromkeys(COUNTS, _check_count),
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
