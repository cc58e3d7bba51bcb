from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache.block_pool import BlockPool
from tests.marks import needs_asserts


def test_a_new_pool_hands_out_every_id_once_in_rising_order() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(1) == [3]
    assert pool.num_free == 0


def test_the_blocks_freed_last_come_back_first_and_in_their_order() -> None:
    pool = BlockPool(6)
    first, second = pool.allocate(2), pool.allocate(3)
    pool.free(first)
    pool.free(second)
    assert pool.allocate(3) == second
    assert pool.allocate(2) == first


def test_blocks_that_were_never_handed_out_go_last_and_are_counted() -> None:
    pool = BlockPool(8)
    assert pool.num_untouched == 8
    pool.free(pool.allocate(3))
    assert pool.num_untouched == 5
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    assert pool.num_untouched == 5
    pool.allocate(1)
    assert pool.num_untouched == 4
    pool.rebuild([])
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
    assert pool.num_untouched == 4


def test_allocating_nothing_changes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert pool.num_free == 2


@needs_asserts
def test_asking_for_more_than_is_free_is_refused_with_both_numbers() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    assert pool.num_free == 2


@needs_asserts
def test_freeing_a_block_twice_is_noticed() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.free(block_ids)
    with pytest.raises(AssertionError, match="block 0 freed twice"):
        pool.free(block_ids)


@needs_asserts
def test_freeing_one_block_twice_in_one_call_is_noticed() -> None:
    pool = BlockPool(2)
    [block_id] = pool.allocate(1)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([block_id, block_id])


@needs_asserts
@pytest.mark.parametrize("block_id", [-1, 2])
def test_freeing_an_id_of_no_block_is_noticed(block_id: int) -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    with pytest.raises(AssertionError, match="is not in"):
        pool.free([block_id])


def test_rebuilding_names_what_was_lost_and_what_was_listed_wrongly() -> None:
    pool = BlockPool(4)
    pool.allocate(2)  # 0 and 1
    assert pool.rebuild({1, 2}) == [
        "returned blocks [0] to the free list",
        "took blocks [2] off the free list, as they have an owner",
    ]
    assert pool.allocate(2) == [0, 3]


def test_rebuilding_a_sound_pool_finds_nothing_wrong() -> None:
    pool = BlockPool(4)
    owned = pool.allocate(3)
    assert pool.rebuild(owned) == []
    assert pool.num_free == 1


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_every_block_is_either_free_or_held_by_exactly_one(num_blocks: int, calls: list[tuple[bool, int]]) -> None:
    pool = BlockPool(num_blocks)
    held: list[list[int]] = []
    for allocates, number in calls:
        if allocates and number <= pool.num_free:
            held.append(pool.allocate(number))
            assert len(held[-1]) == number
        elif held:
            pool.free(held.pop(number % len(held)))
        taken = [block_id for block_ids in held for block_id in block_ids]
        assert sorted([*taken, *pool.free_ids]) == list(range(num_blocks))
        assert pool.num_free == num_blocks - len(taken)
