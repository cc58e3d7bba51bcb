"""Each keyword that the library does not enforce: what it takes, what it refuses, what the error says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.core.constraint import Constraint, ConstraintKind, Enforcement
from headrace.core.errors import InvalidRequest
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.schema.findings import Outcome
from headrace.grammar.schema.lowering import lower
from tests.grammar.judging import schema_matcher, takes_value

OBJECT = {"type": "object"}
A_OR_B = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": False}

CASES: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    (
        "oneOf of required names",
        {**OBJECT, **A_OR_B, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 2}],
    ),
    ("oneOf of ranges that overlap", {"type": "integer", "oneOf": [{"maximum": 5}, {"minimum": 3}]}, [1, 9], [3, 5]),
    (
        "oneOf of closed objects",
        {
            "oneOf": [
                {**OBJECT, "properties": {"a": {}, "c": {}}, "additionalProperties": False},
                {**OBJECT, "properties": {"b": {}, "c": {}}, "additionalProperties": False},
            ]
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}],
        [{}, {"c": 1}, {"a": 1, "b": 1}],
    ),
    (
        "oneOf of lists",
        {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "null"}}]},
        [["x"], [None, None]],
        [[], ["x", None]],
    ),
    ("not of a type", {"not": {"type": ["string", "object"]}}, [1, None, [1]], ["x", {}]),
    ("not of constants", {"type": "string", "not": {"enum": ["ab", "a", ""]}}, ["b", "abc", "aa"], ["a", "ab", ""]),
    ("not of numbers", {"type": "integer", "not": {"enum": [3, 5]}}, [2, 4, 6], [3, 5]),
    ("not of a bound", {"type": "number", "not": {"minimum": 2}}, [1.5, -3], [2, 2.5]),
    ("not of required", {**OBJECT, "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ("not of a property", {**OBJECT, "not": {"properties": {"a": {"const": 1}}}}, [{"a": 2}], [{}, {"a": 1}]),
    ("not of lengths", {"type": "string", "not": {"minLength": 3}}, ["", "ab"], ["abc"]),
    ("not of not", {"not": {"not": {"type": "string"}}}, ["x"], [1]),
    ("not of oneOf", {"not": {"oneOf": [{"minimum": 3}, {"maximum": 5}]}, "type": "integer"}, [3, 4, 5], [2, 6]),
    ("not of anyOf", {"not": {"anyOf": [{"type": "string"}, {"const": 4}]}}, [5, None], ["x", 4]),
    (
        "if with then and else",
        {
            **OBJECT,
            "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["x"]},
            "else": {"properties": {"x": False}},
        },
        [{"kind": "a", "x": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "b", "x": 1}],
    ),
    ("if alone says nothing", {"type": "integer", "if": {"minimum": 3}}, [1, 5], ["x"]),
    (
        "dependentRequired",
        {**OBJECT, **A_OR_B, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        "dependentSchemas",
        {**OBJECT, **A_OR_B, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 5}],
        [{"a": 1, "b": 1}],
    ),
    ("dependencies of draft 7", {**OBJECT, **A_OR_B, "dependencies": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}]),
    ("propertyNames by pattern", {**OBJECT, "propertyNames": {"pattern": "^x"}}, [{}, {"xa": 1}], [{"a": 1}]),
    ("propertyNames by length", {**OBJECT, "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ("propertyNames by list", {**OBJECT, "propertyNames": {"enum": ["a"]}}, [{}, {"a": 1}], [{"b": 1}]),
    ("no names at all", {**OBJECT, "propertyNames": False}, [{}], [{"a": 1}]),
    ("minProperties", {**OBJECT, **A_OR_B, "minProperties": 1}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], [{}]),
    ("maxProperties", {**OBJECT, **A_OR_B, "maxProperties": 1}, [{}, {"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
    (
        "counts beside open names",
        {**OBJECT, "properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 2},
        [{"a": 1}, {"c": 1}, {"a": 1, "c": 1}],
        [{}, {"a": 1, "b": 1, "c": 1}],
    ),
    (
        "uniqueItems of listed values",
        {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
        [[], ["a"], ["b", 1, "a"]],
        [["a", "a"], ["a", "b", "a"]],
    ),
    ("contains", {"type": "array", "maxItems": 3, "contains": {"const": 1}}, [[1], [0, 1], [0, 0, 1]], [[], [0, 0]]),
    ("contains anything", {"type": "array", "contains": {}}, [[0]], [[]]),
    (
        "minContains",
        {"type": "array", "maxItems": 3, "contains": {"const": 1}, "minContains": 2},
        [[1, 0, 1]],
        [[1, 0]],
    ),
    (
        "unevaluatedProperties over allOf",
        {**OBJECT, "allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": False},
        [{}, {"b": 1, "a": 1}],
        [{"c": 1}],
    ),
    (
        "unevaluatedProperties over anyOf",
        {
            **OBJECT,
            "anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1, "c": 1}],
    ),
    (
        "unevaluatedProperties after if",
        {**OBJECT, "if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "unevaluatedProperties": False},
        [{"a": 1}, {}],
        [{"a": 2}, {"a": 1, "b": 1}],
    ),
    (
        "unevaluatedItems",
        {"type": "array", "allOf": [{"prefixItems": [{"type": "string"}]}], "unevaluatedItems": False},
        [[], ["x"]],
        [["x", 1], [1]],
    ),
    ("integral counts", {"type": "string", "maxLength": 2.0}, ["ab"], ["abc"]),
    ("exclusive bounds of draft 4", {"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    (
        "items of draft 4",
        {"type": "array", "items": [{"const": 1}], "additionalItems": False},
        [[1], []],
        [[1, 1], [2]],
    ),
    ("references by anchor", {"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, [None], [1]),
    ("references by id", {"$ref": "other", "$defs": {"x": {"$id": "other", "type": "null"}}}, [None], [1]),
    (
        "references beside keywords",
        {"$ref": "#/$defs/x", "maximum": 3, "$defs": {"x": {"type": "integer"}}},
        [3],
        [4, "x"],
    ),
    (
        "recursion",
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {**OBJECT, "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
        },
        [{}, {"n": {"n": {}}}],
        [{"n": 1}, {"m": {}}],
    ),
    ("unused definitions do not matter", {"type": "null", "$defs": {"x": {"uniqueItems": True}}}, [None], [1]),
    ("unknown formats are annotations", {"type": "string", "format": "color"}, ["red"], [1]),
    ("dates exist", {"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-13-01"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_lowered_schemas_take_what_the_source_takes(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    matcher = schema_matcher(schema)
    assert [value for value in good if not takes_value(matcher, value)] == []
    assert [value for value in bad if takes_value(matcher, value)] == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems cannot be enforced"),
        ({"properties": {"a/b": {"contains": {"const": 1}}}}, "#/properties/a~1b/contains cannot be enforced"),
        ({"not": {"pattern": "^a"}}, "#/not/pattern cannot be enforced"),
        ({"not": {"type": "integer"}}, "#/not/type cannot be enforced"),
        ({"properties": {"x": {"enum": []}}, "required": ["x"]}, "#/properties/x/enum is empty"),
        ({"$ref": "#/$defs/none"}, "#/$defs/none is referred to but is not in the schema"),
        ({"$ref": "https://example.com/x"}, "nothing is fetched"),
        ({"$ref": "#"}, "refers to itself"),
        (
            {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "itself",
        ),
        ({"properties": {"a": {"type": "strin"}}}, "#/properties/a/type is 'strin'"),
        ({"properties": []}, "#/properties must be an object"),
        ({"anyOf": {}}, "#/anyOf must be a list"),
        ({"items": 7}, "#/items: a schema must be"),
        ({"minLength": "3"}, "#/minLength must be a whole number"),
        ({"required": "a"}, "#/required must be a list"),
        ({"properties": {"a": {"required": True}}}, "#/properties/a/required must be a list of names on the object"),
        ({"$dynamicRef": "#x", "$defs": {"a": {"$dynamicAnchor": "x"}}}, "#/$dynamicRef cannot be enforced"),
        (False, "false"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "atisf"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        schema_matcher(schema)
    assert words in refusal.value.message


def test_a_refusal_names_every_place() -> None:
    schema = {"properties": {"a": {"uniqueItems": True}, "b": {"contains": {"const": 1}}}}
    with pytest.raises(InvalidRequest) as refusal:
        schema_matcher(schema)
    assert "#/properties/a/uniqueItems cannot be enforced" in refusal.value.message
    assert "also #/properties/b/contains" in refusal.value.message


def test_best_effort_leaves_out_what_it_warns_of_and_nothing_else() -> None:
    source = json.dumps({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, source, enforcement=Enforcement.BEST_EFFORT)
    grammar = compile_constraint(constraint, GrammarLimits())
    assert len(grammar.warnings) == 1
    assert grammar.warnings[0].startswith("#/uniqueItems is not enforced")
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        compile_constraint(Constraint(ConstraintKind.JSON_SCHEMA, source), GrammarLimits())


def test_findings_say_what_became_of_each_keyword() -> None:
    schema = {
        "type": "object",
        "properties": {"d": {"format": "date", "title": "Day"}, "c": {"format": "color"}, "n": {"not": {"const": 1}}},
        "uniqueItems": True,
        "x-order": 3,
    }
    outcomes = {each.place: each.outcome for each in lower(schema, 100).findings}
    assert outcomes["/type"] is Outcome.ENFORCED
    assert outcomes["/properties/d/format"] is Outcome.REWRITTEN
    assert outcomes["/properties/c/format"] is Outcome.ANNOTATION
    assert outcomes["/properties/n/not"] is Outcome.REWRITTEN
    assert outcomes["/uniqueItems"] is Outcome.REFUSED
    assert outcomes["/x-order"] is Outcome.ANNOTATION


def test_hostile_schemas_are_refused_in_time() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for level in range(12):
        deep = {
            "oneOf": [
                {"type": "object", "properties": {f"a{level}": deep}},
                {"type": "object", "properties": {"b": deep}},
            ]
        }
    with pytest.raises(InvalidRequest):
        schema_matcher(deep)
    many = {"anyOf": [{"properties": {str(i): {"not": {"required": ["x", "y"]}}}} for i in range(200)]}
    assert lower({**many, "unevaluatedProperties": False}, 10_000).refused
    with pytest.raises(InvalidRequest, match="more than 100 properties"):
        lower({"properties": {str(i): {} for i in range(101)}}, 100)


SUITE = Path(__file__).parents[1] / "data" / "json_schema_test_suite.jsonl"
DATA_VARIABLE = "HEADRACE_TEST_SCHEMAS"
"""Names a folder with larger samples, to be read as well."""


def schema_files() -> list[Path]:
    folder = os.environ.get(DATA_VARIABLE)
    return [SUITE] if folder is None else [SUITE, *sorted(Path(folder).glob("*.jsonl"))]


@pytest.mark.parametrize("path", schema_files(), ids=lambda path: path.name)
def test_no_instance_of_the_samples_is_accepted_wrongly(path: Path) -> None:
    wrong, num_right, num_groups = [], 0, 0
    for line in path.read_text(encoding="utf-8").splitlines()[:: 1 if path == SUITE else 4]:
        group = json.loads(line)
        num_groups += 1
        try:
            matcher = schema_matcher(group["schema"])
        except InvalidRequest:
            continue
        taken = [test for test in group["tests"] if not test["valid"] and takes_value(matcher, test["data"])]
        wrong += [(group["id"], test["data"]) for test in taken]
        num_right += not taken
    assert wrong == []
    assert num_right > 0.7 * num_groups
