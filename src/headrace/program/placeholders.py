"""Values that are not known yet, because the program is only traced or has not come so far.

Owns how such a value survives being written into text: as a name between two noncharacters, which no text may
contain. It knows nothing of tracing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.program.ir import Node, Text, Value

_OPEN: Final = "\ufdd0"
_CLOSE: Final = "\ufdd1"
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")


class Placeholder:
    """A value by its name. It can be appended, added to text and formatted; all else needs the value itself."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def value(self) -> Value:
        """The node that stands for it."""
        return Value(self._name)

    def __str__(self) -> str:
        return f"{_OPEN}{self._name}{_CLOSE}"

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._misuse(f"formatted with {spec!r}")
        return str(self)

    def __add__(self, other: object) -> str:
        return str(self) + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + str(self)

    def __repr__(self) -> str:
        return f"<{self._name}, not known while tracing>"

    def __bool__(self) -> bool:
        raise self._misuse("tested for truth")

    def __eq__(self, other: object) -> bool:
        raise self._misuse("compared")

    def __len__(self) -> int:
        raise self._misuse("measured")

    def __iter__(self) -> Iterator[object]:
        raise self._misuse("iterated over")

    def __getitem__(self, key: object) -> object:
        raise self._misuse("indexed")

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):  # Python's own questions (copying, protocols) are no use of the value
            raise AttributeError(attribute)
        raise self._misuse(f"asked for .{attribute}")

    def _misuse(self, use: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._name!r} is {use}, but its value is not known here; use s.branch() to go on differently by a "
            "value, or run the program instead of tracing it and read the value"
        )


def split_text(text: str) -> Iterator[Text | Value]:
    """A text as nodes: names of values where placeholders were written into it."""
    end = 0
    for match in _MARKED.finditer(text):
        if match.start() > end:
            yield Text(text[end : match.start()])
        yield Value(match[1])
        end = match.end()
    if end < len(text):
        yield Text(text[end:])


def split_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes with the placeholders that were written into their texts as values."""
    for node in nodes:
        if isinstance(node, Text):
            yield from split_text(node.text)
        else:
            yield node


def check_constant(text: str, what: str) -> None:
    """Raise ``InvalidRequest`` for a text with a placeholder in it where the program must be constant."""
    match = _MARKED.search(text)
    if match:
        raise InvalidRequest(f"{what} depends on {match[1]!r}, whose value is not known while a program is traced")
