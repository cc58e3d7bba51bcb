"""Reading one tool call from the text a model writes: a JSON object as it comes, or Python's form of a call."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

ARGUMENT_KEYS = ("arguments", "parameters")


class ObjectReader:
    """Follows one JSON object character by character and hands out its arguments as they are written.

    With a ``name`` the whole object is the arguments; without one it has a key for the name and one for the arguments,
    in either order.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.is_complete = False
        self.has_arguments = name is not None
        self._takes_all = name is not None
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self._key: str | None = None
        self._token: list[str] = []  # the string being read where a key stands, or the value of the name
        self._unread: list[str] = []
        self._blanks: list[str] = []

    def push(self, text: str) -> int:
        """Read up to the object's end; how many characters were read."""
        for position, char in enumerate(text):
            self._read(char)
            if self.is_complete:
                return position + 1
        return len(text)

    def take_arguments(self) -> str:
        """Text of the arguments that has not been handed out."""
        text = "".join(self._unread)
        self._unread.clear()
        return text

    def _read(self, char: str) -> None:
        is_structure = not self._is_string
        if is_structure and char in "}]":
            self._depth -= 1
        if self._takes_all:
            self._unread.append(char)
        elif not (is_structure and self._depth <= 1 and self._read_structure(char)):
            self._read_value(char)
        if is_structure and char in "{[":
            self._depth += 1
        self._follow_string(char)
        self.is_complete = self._depth == 0 and is_structure and char == "}"

    def _follow_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._is_string and char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_string = not self._is_string

    def _read_structure(self, char: str) -> bool:
        """Take a character that belongs to the object itself, not to a value in it."""
        if self._depth == 0 and char in "{}":
            self._end_value()
            return True
        if char == ":" and self._key is None:
            self._key = _string(self._token)
            self._token = []
            return True
        if char == "," and self._depth == 1:
            self._end_value()
            return True
        return False

    def _read_value(self, char: str) -> None:
        if self._key in ARGUMENT_KEYS:
            self._read_arguments(char)
        elif self._key is None or self._key == "name":
            self._token.append(char)

    def _read_arguments(self, char: str) -> None:
        """Blanks around a value are not part of it, those inside are."""
        if char.isspace() and not self._is_string:
            if self.has_arguments:
                self._blanks.append(char)
            return
        self.has_arguments = True
        self._unread += [*self._blanks, char]
        self._blanks = []

    def _end_value(self) -> None:
        if self._key == "name":
            self.name = _string(self._token)
        self._key, self._token, self._blanks = None, [], []


def _string(pieces: Sequence[str]) -> str | None:
    try:
        value = json.loads("".join(pieces))
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def read_python_calls(text: str, closers: Sequence[str]) -> list[tuple[str, str]] | None:
    """Names and JSON arguments of calls such as ``[f(a=1), g()]`` or ``f(a=1)``; ``None`` if it is something else."""
    source = text.strip()
    for closer in closers:
        source = source.removesuffix(closer).strip()
    try:
        tree = ast.parse(source, mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else [tree]
        found = [_python_call(call) for call in calls]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return found or None


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("not a call with named arguments")
    arguments = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("a call with **")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False)
