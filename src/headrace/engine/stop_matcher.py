"""Finding stop strings in a text that arrives in pieces.

Owns the one definition of a stop: the match that **ends first** wins, and of matches that end together the
longest. It depends on the text alone, never on how the text was cut into pieces. Only a tail that is a proper
prefix of some stop string is held back, and it is released with the first character that breaks it.

The automaton is Aho and Corasick's ("Efficient string matching: an aid to bibliographic search", CACM 1975):
the cost is linear in the text whatever the number and shape of the strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_ROOT = 0


class StopStrings:
    """The compiled stop strings of a request; immutable, shared by its sequences.

    A state is a node: the longest suffix of the text that is a prefix of some stop string. Compiling costs
    about a microsecond per character of the strings.
    """

    __slots__ = ("depth", "edges", "fallback", "first_chars", "match", "strings")

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(strings)
        self.edges: list[dict[str, int]] = [{}]
        self.fallback: list[int] = [_ROOT]
        self.depth: list[int] = [0]
        self.match: list[str | None] = [None]
        for string in self.strings:
            self._add(string)
        self._link()
        self.first_chars = frozenset(self.edges[_ROOT])

    def __bool__(self) -> bool:
        return bool(self.strings)

    def _add(self, string: str) -> None:
        assert string, "an empty stop string matches everywhere; the request's validation refuses it"
        node = _ROOT
        for char in string:
            child = self.edges[node].get(char)
            if child is None:
                child = len(self.edges)
                self.edges[node][char] = child
                self.edges.append({})
                self.fallback.append(_ROOT)
                self.depth.append(self.depth[node] + 1)
                self.match.append(None)
            node = child
        self.match[node] = string

    def _link(self) -> None:
        """Set each node's fallback (its longest proper suffix that is a node) and inherit its match."""
        queue = deque(self.edges[_ROOT].values())
        while queue:
            node = queue.popleft()
            if self.match[node] is None:
                self.match[node] = self.match[self.fallback[node]]
            for char, child in self.edges[node].items():
                self.fallback[child] = self.step(self.fallback[node], char)
                queue.append(child)

    def step(self, node: int, char: str) -> int:
        """State after ``char``. Amortised O(1) along a text."""
        while True:
            child = self.edges[node].get(char)
            if child is not None:
                return child
            if node == _ROOT:
                return _ROOT
            node = self.fallback[node]

    def num_held(self, node: int) -> int:
        """Characters at the end of the text that may still become a stop string.

        A node without edges is a whole stop string and leads nowhere by itself, but its fallback may.
        """
        while node != _ROOT and not self.edges[node]:
            node = self.fallback[node]
        return self.depth[node]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found: ``before`` is the newly released text in front of it."""

    before: str
    stop: str


class StopMatcher:
    """Position of one text in the automaton, and the tail of it that is held back."""

    __slots__ = ("_held", "_node", "_stops")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._node = _ROOT
        self._held = ""

    def push(self, text: str) -> str | StopMatch:
        """Add text; return what is released, or the match. Nothing may be pushed after a match."""
        stops, node = self._stops, self._node
        if node == _ROOT and stops.first_chars.isdisjoint(text):
            return text  # the usual case; a root state holds nothing back
        for index, char in enumerate(text, start=1):
            node = stops.step(node, char)
            stop = stops.match[node]
            if stop is not None:
                seen = self._held + text[:index]
                self._node, self._held = _ROOT, ""
                return StopMatch(seen[: len(seen) - len(stop)], stop)
        return self._release(text, node)

    def push_unchecked(self, text: str) -> str:
        """Add text in which no match may end; a match that ends later may begin in it."""
        node = self._node
        for char in text:
            node = self._stops.step(node, char)
        return self._release(text, node)

    def flush(self) -> str:
        """Return the held text: no stop string will complete it."""
        text, self._held, self._node = self._held, "", _ROOT
        return text

    def _release(self, text: str, node: int) -> str:
        self._node = node
        seen = self._held + text
        end = len(seen) - self._stops.num_held(node)
        self._held = seen[end:]
        return seen[:end]
