"""Schemas as people write them on a board: ``{"name": string, "tags": [string], "age": integer}``.

Every property is required and no other is allowed. A text that is JSON is a full schema and passes as it is.
"""

from __future__ import annotations

import json
import re

from headrace.core.errors import InvalidRequest
from headrace.grammar.json_text import parse_json

_WORDS = {"string", "integer", "number", "boolean", "null", "object", "array", "any"}
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_]+', re.DOTALL)
_MARK = "\0type:"


def read_shorthand(source: str, max_depth: int) -> str:
    """The text of the schema that ``source`` is, or is short for. Raises ``InvalidRequest``."""
    try:
        json.loads(source)
    except ValueError:
        marked = _PIECE.sub(_marked, source)
        return json.dumps(_schema(parse_json(marked, max_depth, "the schema")))
    return source


def _marked(found: re.Match[str]) -> str:
    word = found[0]
    if word.startswith('"') or word in ("true", "false"):
        return word
    if word not in _WORDS:
        raise InvalidRequest(f"{word!r} is no type; use {', '.join(sorted(_WORDS))}, a value in quotes, or full JSON")
    return json.dumps(_MARK + word)


def _schema(value: object) -> object:
    match value:
        case str() if value.startswith(_MARK):
            name = value.removeprefix(_MARK)
            return {} if name == "any" else {"type": name}
        case dict():
            properties = {name: _schema(each) for name, each in value.items()}
            closed = {"required": list(properties), "additionalProperties": False}
            return {"type": "object", "properties": properties, **closed}
        case [each]:
            return {"type": "array", "items": _schema(each)}
        case list():
            return {"type": "array", "prefixItems": [_schema(each) for each in value], "items": False}
    return {"const": value}
