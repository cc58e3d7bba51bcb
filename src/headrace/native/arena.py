"""Where in the arena each buffer lies: planned once, by lifetime, so that a step allocates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.native.operations import ALIGNMENT, Buffer, Epilogue, Operation, OpKind


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets in bytes per token row; the arena has ``row_bytes`` for each of a step's tokens."""

    offsets: Mapping[str, int]
    row_bytes: int


_OVERWRITING = frozenset({OpKind.EMBED, OpKind.NORM, OpKind.QUANTIZE, OpKind.ATTENTION, OpKind.GATE})


@dataclass(frozen=True, slots=True)
class _Life:
    """Operations ``[first, last]`` from the writing of a value to its last use."""

    first: int
    last: int

    def overlaps(self, other: _Life) -> bool:
        # an operation that reads one buffer and writes another needs both at once
        return self.first <= other.last and other.first <= self.last


def plan_arena(buffers: Sequence[Buffer], operations: Sequence[Operation], kept: Iterable[str]) -> ArenaPlan:
    """Place ``buffers`` so that two overlap in memory only if no value of one lives beside a value of the other.

    ``kept`` buffers live from their first use on, for ever. Largest first, each at the lowest offset that is
    free for it: the greedy order of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference" (arXiv:2001.03288).
    """
    lives = _lives(operations, frozenset(kept))
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    for buffer in sorted(buffers, key=lambda b: (-b.row_bytes, b.name)):
        size = -(-buffer.row_bytes // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, other in sorted(placed):
            if offset < end and start < offset + size and _meet(lives[buffer.name], lives[other]):
                offset = end
        placed.append((offset, offset + size, buffer.name))
        offsets[buffer.name] = offset
    return ArenaPlan(offsets, max(end for _, end, _ in placed))


def _meet(some: list[_Life], others: list[_Life]) -> bool:
    return any(life.overlaps(other) for life in some for other in others)


def _lives(operations: Sequence[Operation], kept: frozenset[str]) -> dict[str, list[_Life]]:
    """Per buffer its values' lives: each begins where the buffer is overwritten and ends with its last use."""
    lives: dict[str, list[_Life]] = {}
    for index, operation in enumerate(operations):
        for name in {operation.input, operation.output} - {None}:
            assert name is not None
            is_new = name == operation.output and name != operation.input and _overwrites(operation)
            if is_new or name not in lives:
                lives.setdefault(name, []).append(_Life(index, index))
            else:
                lives[name][-1] = _Life(lives[name][-1].first, index)
    for name in kept:
        lives[name] = [_Life(lives[name][0].first, len(operations))]
    return lives


def _overwrites(operation: Operation) -> bool:
    return operation.kind in _OVERWRITING or (operation.kind is OpKind.MATMUL and operation.epilogue is Epilogue.STORE)
