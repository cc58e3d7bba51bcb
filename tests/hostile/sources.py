"""Sources of constraints, broken and odd: schemas, regexes and grammars mutated. One seed, one source."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from headrace.core.constraint import Constraint, ConstraintKind
from tests.checkpoint.mutations import mutant

SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
    {"type": "array", "items": {"enum": ["x", "y", None, 1.5]}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "string", "pattern": "^[a-z]{2,5}$"}, {"const": {"k": [1, 2]}}]},
    {"$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"},
    {"type": "object", "patternProperties": {"^s_": {"type": "string"}}, "additionalProperties": False},
    {"oneOf": [{"type": "number", "multipleOf": 0.5}, {"type": "string", "format": "date-time", "maxLength": 40}]},
    {"allOf": [{"type": "object", "properties": {"b": True}}, {"required": ["b"]}], "not": {"required": ["c"]}},
)
REGEXES = (r"[a-z]+@[a-z]+\.(com|org)", r"(\d{3}-){2}\d{4}", r"^(yes|no)$", r"\S+(\s\S+){0,5}", "[\u0400-\u04ff]*é?")
LARKS = (
    'start: item ("," item)*\nitem: /[a-z]+/ | "(" start ")"\n',
    'start: "<a>" body "</a>"\nbody: (/[^<]/ | start)*\n',
    'start: pair+\npair: KEY "=" NUM\nKEY: /[A-Z]+/\nNUM: /[0-9]{1,4}/\n',
)
EBNFS = (
    'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"\n',
    'root ::= "{" ws pair? "}"\npair ::= [a-z]+ ":" [0-9]+\nws ::= [ \\t\\n]*\n',
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    -1,
    0,
    1e308,
    2**70,
    "",
    "stsring",
    "\\d{",
    "#/$defs/none",
    "#",
    [[[[]]]],
    {"type": "stsring"},
    {"$ref": "http://127.0.0.1:9/x"},
    {"pattern": "("},
    ["a"] * 300,
    {"properties": 5},
)
KEYWORDS = (
    "type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref",
    "$defs", "pattern", "format", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "multipleOf",
    "additionalProperties", "patternProperties", "propertyNames", "dependentRequired", "if", "then", "else", "contains",
    "uniqueItems", "exclusiveMinimum", "unevaluatedProperties", "$dynamicRef", "$id", "nonsense",
)  # fmt: skip


def source(seed: int) -> Constraint:
    """The constraint of a seed; four in five are broken somehow."""
    rng = random.Random(seed)
    return rng.choice((_schema, _schema, _schema, _regex, _lark, _ebnf))(rng)


def _schema(rng: random.Random) -> Constraint:
    schema = json.loads(json.dumps(rng.choice(SCHEMAS)))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        _change(schema, rng)
    text = json.dumps(schema)
    return Constraint(ConstraintKind.JSON_SCHEMA, _text(text.encode(), rng) if rng.random() < 0.25 else text)


def _change(value: Any, rng: random.Random) -> None:
    """Go down somewhere and put something odd there."""
    while True:
        inner = [
            each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, dict | list)
        ]
        if not inner or rng.random() < 0.4:
            break
        value = rng.choice(inner)
    odd = json.loads(json.dumps(rng.choice(ODD_VALUES if rng.random() < 0.6 else SCHEMAS)))
    if isinstance(value, dict):
        value[rng.choice((*KEYWORDS, *value))] = odd
    else:
        value.insert(rng.randrange(len(value) + 1), odd)


def _regex(rng: random.Random) -> Constraint:
    parts = [rng.choice(REGEXES) for _ in range(rng.choice((1, 1, 2, 3)))]
    text = rng.choice(("", "|", "(", "){3}", "*", "(?=")).join(parts)
    return Constraint(ConstraintKind.REGEX, _text(text.encode(), rng) or "(")


def _lark(rng: random.Random) -> Constraint:
    return Constraint(ConstraintKind.LARK, _text(rng.choice(LARKS).encode(), rng))


def _ebnf(rng: random.Random) -> Constraint:
    return Constraint(ConstraintKind.EBNF, _text(rng.choice(EBNFS).encode(), rng))


def _text(data: bytes, rng: random.Random) -> str:
    damage: Callable[[bytes, random.Random], bytes] = mutant if rng.random() < 0.8 else lambda whole, _: whole
    return damage(data, rng).decode("utf-8", "ignore").replace("\0", "")
