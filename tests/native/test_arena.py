"""Buffers that hold values at the same time never share memory, and the arena is no larger than it must be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.native.arena import ArenaPlan, plan_arena
from headrace.native.operations import ALIGNMENT, Buffer, Epilogue, Operation, OpKind

NAMES = [f"b{index}" for index in range(7)]

OVERWRITING = [OpKind.NORM, OpKind.QUANTIZE, OpKind.ATTENTION, OpKind.GATE]


def norm(source: str, target: str) -> Operation:
    return Operation(kind=OpKind.NORM, input=source, output=target, vector="w")


def embed(target: str) -> Operation:
    return Operation(kind=OpKind.EMBED, output=target, matrix="m")


def add(source: str, target: str) -> Operation:
    return Operation(kind=OpKind.MATMUL, input=source, output=target, matrix="m", epilogue=Epilogue.ADD)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Buffer], list[Operation]]:
    """Operations that only read what was written before, over buffers of random sizes."""
    operations = [embed(draw(st.sampled_from(NAMES)))]
    written = {operations[0].output}
    for _ in range(draw(st.integers(0, 14))):
        source = draw(st.sampled_from(sorted(written)))
        target = draw(st.sampled_from(NAMES))
        choices = [Operation(kind=kind, input=source, output=target) for kind in OVERWRITING]
        choices += [embed(target), norm(source, target)]
        if target in written:
            choices += [
                add(source, target),
                Operation(kind=OpKind.NORM_ADD, input=source, output=target),
                Operation(kind=OpKind.ROTATE_STORE, input=target, output=target),
                Operation(kind=OpKind.SCALE, output=target),
            ]
        operations.append(draw(st.sampled_from(choices)))
        written.add(target)
    buffers = [Buffer(name, draw(st.integers(1, 300)), draw(st.booleans())) for name in sorted(written)]
    return buffers, operations


def overwrites(operation: Operation) -> bool:
    if operation.input == operation.output or operation.kind in (OpKind.NORM_ADD, OpKind.SCALE):
        return False
    return operation.kind is not OpKind.MATMUL or operation.epilogue is Epilogue.STORE


def live_sets(operations: list[Operation], kept: frozenset[str]) -> list[set[str]]:
    """Which buffers need memory while each operation runs, by the textbook's walk from the end to the beginning."""
    needed = set(kept)
    sets = []
    for index in reversed(range(len(operations))):
        operation = operations[index]
        touched = {operation.output} | ({operation.input} - {None})
        sets.append(needed | touched)
        if overwrites(operation) and operation.output not in kept:
            needed.discard(operation.output)
        else:
            needed.add(operation.output)
        if operation.input is not None:
            needed.add(operation.input)
        # before its first use a kept buffer holds nothing yet
        first_uses = {op.output for op in operations[:index]} | {op.input for op in operations[:index]}
        needed &= first_uses
    return sets[::-1]


def aligned_bytes(buffer: Buffer) -> int:
    return -(-buffer.row_bytes // ALIGNMENT) * ALIGNMENT


def assert_no_overlap(plan: ArenaPlan, buffers: list[Buffer], live: set[str]) -> None:
    spans = sorted((plan.offsets[b.name], plan.offsets[b.name] + b.row_bytes) for b in buffers if b.name in live)
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start


@settings(max_examples=150, deadline=None)
@given(programs(), st.data())
def test_no_two_buffers_that_live_at_the_same_time_overlap(program, data: st.DataObject) -> None:
    buffers, operations = program
    kept = frozenset(data.draw(st.sets(st.sampled_from([b.name for b in buffers]))))
    plan = plan_arena(buffers, operations, kept)
    for live in live_sets(operations, kept):
        assert_no_overlap(plan, buffers, live)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_the_arena_is_aligned_covers_every_buffer_and_is_no_larger_than_all_of_them_together(program) -> None:
    buffers, operations = program
    plan = plan_arena(buffers, operations, [])
    assert all(plan.offsets[b.name] % ALIGNMENT == 0 for b in buffers)
    assert plan.row_bytes >= max(plan.offsets[b.name] + b.row_bytes for b in buffers)
    assert plan.row_bytes <= sum(aligned_bytes(b) for b in buffers)


def test_a_value_that_is_dead_leaves_its_place_to_the_next() -> None:
    buffers = [Buffer(name, 64) for name in ("a", "b", "c", "d")]
    plan = plan_arena(buffers, [embed("a"), norm("a", "b"), norm("b", "c"), norm("c", "d")], [])
    assert plan.row_bytes == 2 * 64 * 4
    assert plan.offsets["a"] == plan.offsets["c"] != plan.offsets["b"] == plan.offsets["d"]


def test_a_buffer_that_is_overwritten_is_free_in_between() -> None:
    operations = [embed("a"), norm("a", "b"), norm("b", "c"), embed("a"), norm("a", "b")]
    plan = plan_arena([Buffer(name, 64) for name in ("a", "b", "c")], operations, [])
    assert plan.offsets["c"] == plan.offsets["a"]  # while c lives, a holds nothing anyone reads


def test_a_buffer_that_is_added_to_lives_through_everything_in_between() -> None:
    operations = [embed("a"), norm("a", "b"), norm("b", "c"), add("c", "a")]
    plan = plan_arena([Buffer(name, 64) for name in ("a", "b", "c")], operations, [])
    assert len(set(plan.offsets.values())) == 3


def test_a_kept_buffer_shares_its_memory_with_nothing_after_its_first_use() -> None:
    operations = [embed("a"), norm("a", "b"), norm("b", "c")]
    shared = plan_arena([Buffer(name, 64) for name in ("a", "b", "c")], operations, [])
    kept = plan_arena([Buffer(name, 64) for name in ("a", "b", "c")], operations, ["a"])
    assert shared.offsets["c"] == shared.offsets["a"]
    assert kept.offsets["a"] not in (kept.offsets["b"], kept.offsets["c"])


@pytest.mark.parametrize(("width", "row_bytes"), [(1, 40), (32, 40), (33, 80), (576, 720)])
def test_a_quantised_row_has_its_values_padded_to_groups_with_a_scale_and_a_sum_each(width, row_bytes) -> None:
    assert Buffer("b", width, is_quantized=True).row_bytes == row_bytes
    assert Buffer("b", width).row_bytes == 4 * width
