"""A schema as a union of conjunctions of flat schemas: those without the keywords that branch.

``oneOf``, ``not``, ``if`` and the dependent keywords become alternatives that say the same. Where ``unevaluated*``
must know which keywords have spoken, ``anyOf``, ``allOf`` and references are spread out too: an alternative for every
set of branches that may hold together, which is exact because more branches only ever leave less unevaluated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from headrace.grammar.schema.company import settle
from headrace.grammar.schema.complement import complement
from headrace.grammar.schema.disjoint import are_disjoint
from headrace.grammar.schema.document import Document
from headrace.grammar.schema.keywords import SILENT, UNENFORCEABLE, Schema, pointer, types_of

MAX_ALTERNATIVES = 400
MAX_SPREAD_BRANCHES = 5
MAX_REFERENCES = 24

Flat = dict[str, object]
Conjunction = list[Flat]

BRANCHING = frozenset(["oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"])
UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})


class TooManyAlternatives(Exception):
    """The union would not fit."""


def flatten(schema: Schema, document: Document, at: str) -> list[Conjunction]:
    """The alternatives of a schema. Raises ``TooManyAlternatives``. No alternative means that nothing satisfies it."""
    spread = _Flattener(document).flatten(schema, at)
    return [settled for flats in spread for settled in settle(flats, document)]


class _Flattener:
    def __init__(self, document: Document, is_spreading: bool = False, num_references: int = 0) -> None:
        self._document = document
        self._is_spreading = is_spreading
        self._num_references = num_references

    def flatten(self, schema: Schema, at: str) -> list[Conjunction]:
        if isinstance(schema, bool):
            return [[]] if schema else []
        at = self._document.place_of(schema, at)
        spreading = self._is_spreading or bool(UNEVALUATED & schema.keys())
        inner = _Flattener(self._document, spreading, self._num_references)
        own = {key: value for key, value in schema.items() if key not in self._spread_keys(spreading)}
        parts: list[list[Conjunction]] = [[[own]] if own else [[]]]
        for key, spread in _SPREADS.items():
            if key in schema and (key in BRANCHING or spreading):
                parts.append(spread(inner, schema, pointer(at, key)))
        found = _product(parts, self._document)
        for key in sorted(UNEVALUATED & schema.keys()):
            found = [_with_unevaluated(each, key, schema[key], pointer(at, key)) for each in found]
        return found

    @staticmethod
    def _spread_keys(spreading: bool) -> frozenset[str]:
        kept = BRANCHING | UNEVALUATED
        return kept | {"allOf", "anyOf", "$ref"} if spreading else kept

    def all_of(self, schema: Flat, at: str) -> list[Conjunction]:
        members = _schemas(schema["allOf"])
        return _product([self.flatten(each, pointer(at, i)) for i, each in enumerate(members)], self._document)

    def any_of(self, schema: Flat, at: str) -> list[Conjunction]:
        branches = [self.flatten(each, pointer(at, i)) for i, each in enumerate(_schemas(schema["anyOf"]))]
        if not self._is_spreading:
            return [each for branch in branches for each in branch]
        if len(branches) > MAX_SPREAD_BRANCHES:
            raise TooManyAlternatives(at)
        subsets = (subset for size in range(1, len(branches) + 1) for subset in itertools.combinations(branches, size))
        return [each for subset in subsets for each in _product(list(subset), self._document)]

    def one_of(self, schema: Flat, at: str) -> list[Conjunction]:
        """One branch, and the opposite of each other that it is not proven disjoint from."""
        branches = _schemas(schema["oneOf"])
        found: list[Conjunction] = []
        for index, branch in enumerate(branches):
            parts = [self.flatten(branch, pointer(at, index))]
            for other_index, other in enumerate(branches):
                if other_index != index and not are_disjoint(branch, other, self._document):
                    parts.append(self._opposite(other, pointer(at, other_index)))
            found += _product(parts, self._document)
        return found

    def not_(self, schema: Flat, at: str) -> list[Conjunction]:
        return self._opposite(_schema(schema["not"]), at)

    def if_(self, schema: Flat, at: str) -> list[Conjunction]:
        condition = _schema(schema["if"])
        then, otherwise = _schema(schema.get("then", True)), _schema(schema.get("else", True))
        found: list[Conjunction] = []
        if then is not False:
            held = [self.flatten(condition, at), self.flatten(then, at.removesuffix("if") + "then")]
            found += _product(held, self._document)
        if otherwise is not False:
            failed = [self._opposite(condition, at), self.flatten(otherwise, at.removesuffix("if") + "else")]
            found += _product(failed, self._document)
        return found

    def dependent_required(self, schema: Flat, at: str) -> list[Conjunction]:
        parts: list[list[Conjunction]] = []
        for name, names in _map(schema["dependentRequired"]).items():
            needed = [each for each in names if isinstance(each, str)] if isinstance(names, list) else []
            if needed:
                parts.append([[_without(name)], [{"required": [name, *needed]}]])
        return _product(parts, self._document)

    def dependent_schemas(self, schema: Flat, at: str) -> list[Conjunction]:
        parts: list[list[Conjunction]] = []
        for name, each in _map(schema["dependentSchemas"]).items():
            needed = self.flatten(_schema(each), pointer(at, name))
            # values that are no objects have no property at all, so the schema does not speak of them
            has_it: Flat = {"type": "object", "required": [name]}
            parts.append([[_without(name)], *_product([[[has_it]], needed], self._document)])
        return _product(parts, self._document)

    def reference(self, schema: Flat, at: str) -> list[Conjunction]:
        target = schema["$ref"]
        assert isinstance(target, str)
        if self._num_references >= MAX_REFERENCES:
            raise TooManyAlternatives(at)
        inner = _Flattener(self._document, self._is_spreading, self._num_references + 1)
        return inner.flatten(self._document.at(target), target)

    def _opposite(self, schema: Schema, at: str) -> list[Conjunction]:
        if not isinstance(schema, bool):
            at = self._document.place_of(schema, at)
        # which branches hold is not asked inside a negation: it leaves no annotations
        inner = _Flattener(self._document, num_references=self._num_references)
        opposite = complement(schema, self._document, at)
        found = [each for alternative in opposite for each in inner.flatten(alternative, at)]
        return [[flat | {SILENT: True} for flat in flats] for flats in found]


_SPREADS: dict[str, Callable[[_Flattener, Flat, str], list[Conjunction]]] = {
    "allOf": _Flattener.all_of,
    "anyOf": _Flattener.any_of,
    "$ref": _Flattener.reference,
    "oneOf": _Flattener.one_of,
    "not": _Flattener.not_,
    "if": _Flattener.if_,
    "dependentRequired": _Flattener.dependent_required,
    "dependentSchemas": _Flattener.dependent_schemas,
}


def _without(name: str) -> Flat:
    return {"properties": {name: False}}


def _product(parts: Sequence[list[Conjunction]], document: Document) -> list[Conjunction]:
    """Every way to take one alternative of each part, without those that contradict themselves."""
    found: list[Conjunction] = [[]]
    for part in parts:
        joined = ([*one, *other] for one in found for other in part)
        found = [each for each in joined if not _is_contradiction(each)]
        if len(found) > MAX_ALTERNATIVES:
            raise TooManyAlternatives
    return found


def _is_contradiction(flats: Conjunction) -> bool:
    types = frozenset.intersection(*map(types_of, flats)) if flats else None
    if types is None:
        return False
    if not types:
        return True
    if types != {"object"}:
        return False
    required = {name for flat in flats for name in _names(flat)}
    return any(_map(flat.get("properties")).get(name) is False for flat in flats for name in required)


def _names(flat: Flat) -> list[str]:
    required = flat.get("required")
    return required if isinstance(required, list) else []


def _with_unevaluated(flats: Conjunction, key: str, value: object, at: str) -> Conjunction:
    """Add what ``unevaluated*`` says of what none of the conjunction's keywords speaks of."""
    if key == "unevaluatedProperties":
        return [*flats, *_unevaluated_properties(_speaking(flats), value)]
    return [*flats, *_unevaluated_items(_speaking(flats), value, at)]


def _speaking(flats: Conjunction) -> Conjunction:
    return [flat for flat in flats if SILENT not in flat]


def _unevaluated_properties(flats: Conjunction, value: object) -> Conjunction:
    if any("additionalProperties" in flat for flat in flats):
        return []
    names = {name: True for flat in flats for name in _map(flat.get("properties"))}
    patterns = {regex: True for flat in flats for regex in _map(flat.get("patternProperties"))}
    added: Flat = {"properties": names, "patternProperties": patterns, "additionalProperties": value}
    return [{key: each for key, each in added.items() if each != {}}]


def _unevaluated_items(flats: Conjunction, value: object, at: str) -> Conjunction:
    if any("items" in flat for flat in flats):
        return []
    if any("contains" in flat for flat in flats):
        return [{"type": "array", UNENFORCEABLE: f"{at}\0contains decides what is evaluated"}]
    num_prefix = max((len(_schemas(flat.get("prefixItems", []))) for flat in flats), default=0)
    prefix: Flat = {"prefixItems": [True] * num_prefix} if num_prefix else {}
    return [prefix | {"items": value}]


def _schema(value: object) -> Schema:
    assert isinstance(value, dict | bool)
    return value


def _schemas(value: object) -> list[Schema]:
    return [_schema(each) for each in value] if isinstance(value, list) else []


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
