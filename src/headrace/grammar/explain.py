"""A grammar as a finite automaton over bytes: its states, what may follow in each, what is forced.

No library gives one, because grammars are followed lazily and need not be finite. This one is found by walking: states
are merged when they allow the same bytes and their successors do, to a depth that random walks confirm; a walk that
disagrees with the matcher makes the depth grow. A grammar with more states than asked for is cut, and says so.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np

from headrace.core.constraint import Constraint
from headrace.grammar.builder import mask_words
from headrace.grammar.bytewise import END_OF_OUTPUT
from headrace.grammar.matcher import GrammarMatcher
from headrace.grammar.trial import byte_matcher

MAX_STATES = 200
MAX_DEPTH = 6
NUM_CHECK_WALKS = 50
MAX_WALK_BYTES = 200


class Edge(msgspec.Struct, frozen=True):
    """Bytes that lead to a state: one of ``any_of``, or the whole ``text``, which is forced."""

    target: int
    any_of: tuple[int, ...] = ()
    text: bytes = b""


class State(msgspec.Struct, frozen=True):
    """``path`` is a shortest output that leads here; ``may_end`` is whether it is complete."""

    number: int
    may_end: bool
    edges: tuple[Edge, ...]
    path: bytes


class Automaton(msgspec.Struct, frozen=True):
    """State 0 is the beginning. ``is_cut`` says that there are more states, perhaps without end."""

    states: tuple[State, ...]
    is_cut: bool

    def follow(self, data: bytes) -> State | None:
        """The state after some bytes; ``None`` where they are not an output's beginning, or end inside an edge."""
        number, position = 0, 0
        while position < len(data):
            step = self._step(number, data, position)
            if step is None:
                return None
            number, position = step
        return self.states[number]

    def _step(self, number: int, data: bytes, position: int) -> tuple[int, int] | None:
        for edge in self.states[number].edges:
            if edge.text and data.startswith(edge.text, position):
                return edge.target, position + len(edge.text)
            if data[position] in edge.any_of:
                return edge.target, position + 1
        return None


def explain(constraint: Constraint, max_states: int = MAX_STATES) -> Automaton:
    """The automaton of a constraint, with chains of forced bytes folded. Raises ``InvalidRequest``.

    Takes about a second for an object of a few properties.
    """
    start = byte_matcher(constraint)
    for depth in range(4, MAX_DEPTH + 1):
        automaton = _Walker(start, depth, max_states).walk()
        if automaton.is_cut or all(_agrees(automaton, start, seed) for seed in range(NUM_CHECK_WALKS)):
            return fold(automaton)
    return fold(Automaton(automaton.states, is_cut=True))  # no depth tells its states apart: it has no finite number


class _Walker:
    """Breadth-first search over a matcher's states."""

    def __init__(self, start: GrammarMatcher, depth: int, max_states: int) -> None:
        self._start = start
        self._depth = depth
        self._max_states = max_states

    def walk(self) -> Automaton:
        numbers = {_signature(self._start, self._depth): 0}
        queue: deque[tuple[GrammarMatcher, bytes]] = deque([(self._start, b"")])
        states: list[State] = []
        while queue:
            matcher, path = queue.popleft()
            edges: dict[int, list[int]] = {}
            for group, child in _successors(matcher, self._depth):
                signature = _signature(child, self._depth)
                if signature not in numbers:
                    if len(numbers) >= self._max_states:
                        return Automaton(_closed(states), is_cut=True)
                    numbers[signature] = len(numbers)
                    queue.append((child, path + bytes(group[:1])))
                edges.setdefault(numbers[signature], []).extend(group)
            found = tuple(Edge(target, tuple(bytes_)) for target, bytes_ in edges.items())
            states.append(State(len(states), matcher.may_end, found, path))
        return Automaton(tuple(states), is_cut=False)


def fold(automaton: Automaton) -> Automaton:
    """Join forced bytes into one edge where nothing else begins or ends between them."""
    num_sources: dict[int, int] = {}
    for state in automaton.states:
        for edge in state.edges:
            num_sources[edge.target] = num_sources.get(edge.target, 0) + 1
    kept = [state for state in automaton.states if not _is_passed(state, num_sources)]
    numbers = {state.number: number for number, state in enumerate(kept)}
    return Automaton(
        tuple(
            State(numbers[state.number], state.may_end, tuple(_folded(automaton, state, numbers)), state.path)
            for state in kept
        ),
        automaton.is_cut,
    )


def _folded(automaton: Automaton, state: State, numbers: dict[int, int]) -> Iterator[Edge]:
    for edge in state.edges:
        if len(edge.any_of) > 1:
            yield Edge(numbers[edge.target], edge.any_of)
            continue
        text, target = bytes(edge.any_of), edge.target
        while target not in numbers:
            (only,) = automaton.states[target].edges
            text, target = text + bytes(only.any_of), only.target
        yield Edge(numbers[target], text=text)


def _is_passed(state: State, num_sources: dict[int, int]) -> bool:
    """Whether a state is only a place on the way: one byte in, one byte out."""
    has_one_way_on = len(state.edges) == 1 and len(state.edges[0].any_of) == 1
    return (
        state.number != 0
        and has_one_way_on
        and not state.may_end
        and num_sources.get(state.number) == 1
        and (state.edges[0].target != state.number)
    )


def allowed_bytes(matcher: GrammarMatcher) -> list[int]:
    """Bytes that may come next, without the end."""
    row = np.zeros(mask_words(END_OF_OUTPUT + 1), np.int32)
    matcher.fill_row(row)
    bits: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return [bit for bit in bits if bit < END_OF_OUTPUT]


MAX_SINGLE_BYTES = 16
"""A state that allows more bytes is in free text or inside a character; one probe tells such states apart."""

_PROBED = frozenset(b'",:]}')
_Signature = tuple[object, ...]


def _successors(matcher: GrammarMatcher, depth: int) -> Iterator[tuple[list[int], GrammarMatcher]]:
    """Bytes that may come next, alone or with those that lead to states that look the same, with a matcher behind."""
    groups: dict[_Signature, tuple[list[int], GrammarMatcher]] = {}
    for byte in () if matcher.must_end else allowed_bytes(matcher):
        child = matcher.fork()
        if not child.accept(byte):
            raise RuntimeError(f"byte {byte} is allowed and yet not accepted")
        here = [] if child.must_end else allowed_bytes(child)
        key = _probe(child, here[0], depth) if len(here) > MAX_SINGLE_BYTES else (byte,)
        groups.setdefault(key, ([], child))[0].append(byte)
    yield from groups.values()


def _signature(matcher: GrammarMatcher, depth: int) -> _Signature:
    """What a state looks like: what it allows, and what comes behind a few of the bytes it allows."""
    allowed = [] if matcher.must_end else allowed_bytes(matcher)
    probed = sorted({*allowed[:1], *allowed[-1:], *_PROBED.intersection(allowed)})
    if len(allowed) <= MAX_SINGLE_BYTES:
        probed = allowed
    return (matcher.may_end, tuple(allowed), *(_probe(matcher, byte, depth) for byte in probed))


def _probe(matcher: GrammarMatcher, byte: int, depth: int) -> _Signature:
    """What is allowed along a way that begins with ``byte`` and then always takes the first byte allowed."""
    walker = matcher.fork()
    seen: list[object] = []
    for _ in range(depth):
        allowed = [] if walker.must_end else allowed_bytes(walker)
        seen.append((walker.may_end, tuple(allowed)))
        step = byte if len(seen) == 1 else next(iter(allowed), None)
        if step is None or not walker.accept(step):
            break
    return tuple(seen)


def _agrees(automaton: Automaton, start: GrammarMatcher, seed: int) -> bool:
    """Whether automaton and matcher allow the same bytes all along a random walk."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible walk, nothing secret
    matcher, number = start.fork(), 0
    for _ in range(MAX_WALK_BYTES):
        state = automaton.states[number]
        allowed = [] if matcher.must_end else allowed_bytes(matcher)
        if state.may_end != matcher.may_end or sorted(b for edge in state.edges for b in edge.any_of) != allowed:
            return False
        if not allowed:
            return True
        byte = rng.choice(allowed)
        matcher.accept(byte)
        number = next(edge.target for edge in state.edges if byte in edge.any_of)
    return True


def _closed(states: list[State]) -> tuple[State, ...]:
    """A cut automaton's states without edges to those that were not looked at."""
    known = len(states)
    return tuple(
        State(each.number, each.may_end, tuple(edge for edge in each.edges if edge.target < known), each.path)
        for each in states
    )
