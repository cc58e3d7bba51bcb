"""Conditions that can only be written in the company of others: made plain where the rest of a conjunction allows it.

"Some property is outside these names" is a choice of properties where another schema closes the object. "Some item does
not satisfy this" is "there is an item" where another schema's items are disjoint from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.grammar.schema.disjoint import are_disjoint
from headrace.grammar.schema.document import Document
from headrace.grammar.schema.keywords import EXTRA_PROPERTY, SOME_ITEM, UNENFORCEABLE, Schema

Flat = dict[str, object]


def settle(flats: list[Flat], document: Document) -> Iterator[list[Flat]]:
    """The conjunctions that say the same as one, without conditions that need company."""
    for index, flat in enumerate(flats):
        others = [each for position, each in enumerate(flats) if position != index]
        if EXTRA_PROPERTY in flat:
            for plain in _extra_property(flat, others, document):
                yield from settle([*flats[:index], plain, *flats[index + 1 :]], document)
            return
        if SOME_ITEM in flat:
            plain = _some_item(flat, others, document)
            yield from settle([*flats[:index], plain, *flats[index + 1 :]], document)
            return
    yield flats


def _extra_property(flat: Flat, others: list[Flat], document: Document) -> Iterator[Flat]:
    known, place = _marker(flat, EXTRA_PROPERTY)
    rest = {key: value for key, value in flat.items() if key != EXTRA_PROPERTY}
    closing = next((names for each in others if (names := _closed_names(each, document)) is not None), None)
    if closing is None:
        yield rest | {UNENFORCEABLE: f"{place}\0its opposite cannot be written where names are open"}
        return
    assert isinstance(known, list)
    yield from (rest | {"required": [name]} for name in closing if name not in known)


def _closed_names(flat: Flat, document: Document) -> list[str] | None:
    """The names an object may have, if a schema or what it refers to lists them all."""
    ref = flat.get("$ref")
    if isinstance(ref, str):
        target = document.at(ref)
        if isinstance(target, dict) and (names := _closed_names(target, document)) is not None:
            return names
    properties = flat.get("properties", {})
    if flat.get("additionalProperties") is not False or flat.get("patternProperties"):
        return None
    return [name for name, each in properties.items() if each is not False] if isinstance(properties, dict) else None


def _some_item(flat: Flat, others: list[Flat], document: Document) -> Flat:
    wanted, place = _marker(flat, SOME_ITEM)
    rest = {key: value for key, value in flat.items() if key != SOME_ITEM}
    assert isinstance(wanted, dict | bool)
    if any(_items_are_disjoint(each, wanted, document) for each in others):
        return rest
    return rest | {UNENFORCEABLE: f"{place}\0its opposite cannot be written"}


def _items_are_disjoint(flat: Flat, schema: Schema, document: Document) -> bool:
    items = flat.get("items")
    if flat.get("prefixItems") or not isinstance(items, dict):
        return False
    return are_disjoint(items, schema, document)


def _marker(flat: Flat, key: str) -> tuple[object, str]:
    marker = flat[key]
    assert isinstance(marker, tuple)
    value, place = marker
    return value, str(place)
