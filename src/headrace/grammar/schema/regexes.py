"""Regular expressions: those that the lowering writes itself, and where a schema has its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from headrace.grammar.schema.keywords import pointer


def patterns_of(schema: object, place: str = "") -> Iterator[tuple[str, str]]:
    """The regexes of a schema with their places, as JSON pointers."""
    if isinstance(schema, list):
        for index, each in enumerate(schema):
            yield from patterns_of(each, pointer(place, index))
    elif isinstance(schema, dict):
        for name, value in schema.items():
            where = pointer(place, name)
            if name == "pattern" and isinstance(value, str):
                yield where, value
            elif name == "patternProperties" and isinstance(value, dict):
                yield from ((pointer(where, regex), regex) for regex in value)
            yield from patterns_of(value, where)


def literal(text: str) -> str:
    """A regex for exactly ``text``, in the syntax that both ECMA 262 and Rust read."""
    return re.sub(r"([\\^$.|?*+()\[\]{}/\-])", r"\\\1", text).replace("\n", r"\n").replace("\r", r"\r")


def length(minimum: int, maximum: int | None) -> str:
    """Any text of so many characters."""
    upper = "" if maximum is None else str(maximum)
    return f"^[\\s\\S]{{{minimum},{upper}}}$"


def none_of(words: Iterable[str]) -> str:
    """Any text but these: a walk through the tree of their letters that leaves it, or stops between words."""
    return f"^{_other_than(sorted(set(words)))}$"


def _other_than(words: list[str]) -> str:
    by_first: dict[str, list[str]] = {}
    for word in words:
        if word:
            by_first.setdefault(word[0], []).append(word[1:])
    if not by_first:
        return "[\\s\\S]+" if words else "[\\s\\S]*"
    leaving = "[^" + "".join(literal(char) for char in by_first) + "][\\s\\S]*"
    staying = [literal(char) + _other_than(rests) for char, rests in by_first.items()]
    here = [] if "" in words else [""]
    return "(?:" + "|".join([leaving, *staying, *here]) + ")"
