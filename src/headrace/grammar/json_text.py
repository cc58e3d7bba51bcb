"""Reading JSON that a client sent as a source: bounded in depth, exact about where it is wrong."""

from __future__ import annotations

import json
import re

from headrace.core.errors import InvalidRequest

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SHOWN_CHARS = 60


def parse_json(text: str, max_depth: int, what: str) -> object:
    """Parse JSON; objects keep their keys' order. Raises ``InvalidRequest`` with line, column and a caret.

    A key given twice is refused: two readers would take different ones. So are NaN and Infinity, which are not JSON.
    """
    _check_depth(text, max_depth, what)
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{what} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}\n"
            f"{caret(text, error.pos)}"
        ) from None
    except _Repeated as error:
        raise InvalidRequest(f"{what} has the key {error.args[0]!r} twice in one object; keep one") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}") from None


def caret(text: str, position: int) -> str:
    """The line of ``text`` around ``position`` with a caret under it, cut to what a message can show."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end]
    column = position - start
    first = max(0, column - _SHOWN_CHARS // 2)
    return f"{line[first : first + _SHOWN_CHARS]}\n{' ' * (column - first)}^"


class _Repeated(Exception):
    """A key stands twice in one object."""


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _Repeated(key)
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(text: str, max_depth: int, what: str) -> None:
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for char in _STRING.sub("", text):
        if char in "[{":
            depth += 1
            if depth > max_depth:
                raise InvalidRequest(f"{what} is nested deeper than {max_depth} levels; flatten it")
        elif char in "]}":
            depth -= 1
