"""Keywords about an array as a whole, written out position by position where there are few enough."""

from __future__ import annotations

import itertools
import math

from headrace.grammar.schema.disjoint import same_json
from headrace.grammar.schema.keywords import Schema

MAX_ARRAYS = 400
MAX_POSITIONS = 8

Outcome = list[Schema] | str

_NO_ARRAY: Schema = {"type": ["null", "boolean", "number", "string", "object"]}


def lower_unique(schema: dict[str, object]) -> Outcome:
    """``uniqueItems`` over a few values: every arrangement of them."""
    most = schema.get("maxItems")
    if schema["uniqueItems"] is not True or (isinstance(most, int) and most <= 1):
        return [{}]
    values = _finite(schema.get("items"))
    if values is None or schema.get("prefixItems"):
        return "items are not from a list of values, so a repeated one cannot be foreseen; give items an enum"
    least = schema.get("minItems", 0)
    assert isinstance(least, int)
    most = min(most, len(values)) if isinstance(most, int) else len(values)
    if sum(math.perm(len(values), size) for size in range(least, most + 1)) > MAX_ARRAYS:
        return f"{len(values)} different items can be arranged in too many ways"
    arrays: list[Schema] = [
        {"type": "array", "prefixItems": [{"const": each} for each in items], "minItems": size, "items": False}
        for size in range(least, most + 1)
        for items in itertools.permutations(values, size)
    ]
    return [{"anyOf": [*arrays, _NO_ARRAY]}]


def lower_contains(schema: dict[str, object]) -> Outcome:
    """``contains`` in a short array: one alternative for each set of positions that hold what is asked for."""
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    assert isinstance(least, int)
    wanted = schema["contains"]
    if least == 0 and most is None:
        return [{}]
    if wanted is True or wanted == {}:
        counts: dict[str, object] = {"minItems": least}
        return [counts if most is None else counts | {"maxItems": most}]
    if least == 0 and most == 0:
        return [{"items": {"not": wanted}}]
    longest = schema.get("maxItems")
    if not isinstance(longest, int) or longest > MAX_POSITIONS:
        return f"which item it is cannot be foreseen in an array of any length; set maxItems to {MAX_POSITIONS} or less"
    if most is not None:
        return "how many items satisfy it cannot be counted; leave maxContains out"
    return [{"anyOf": [*(_holding(wanted, each) for each in itertools.combinations(range(longest), least)), _NO_ARRAY]}]


def _holding(wanted: object, positions: tuple[int, ...]) -> Schema:
    """An array with what is wanted at these positions, and anything between and behind them."""
    size = max(positions, default=-1) + 1
    items = [wanted if index in positions else True for index in range(size)]
    return {"type": "array", "minItems": size, "prefixItems": items}


def _finite(items: object) -> list[object] | None:
    """The values items can have, each once; ``None`` if they are not listed."""
    if not isinstance(items, dict):
        return None
    listed: list[object]
    if "const" in items:
        listed = [items["const"]]
    elif isinstance(items.get("enum"), list):
        listed = items["enum"]
    elif items.get("type") == "boolean":
        listed = [False, True]
    elif items.get("type") == "null":
        listed = [None]
    else:
        return None
    different: list[object] = []
    for value in listed:
        if not any(same_json(value, other) for other in different):
            different.append(value)
    return different
