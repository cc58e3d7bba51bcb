"""The tiers below the pool: what is kept, what is given up first, and what a plan is told to copy."""

from __future__ import annotations

import pytest

from headrace.cache.packed_tokens import pack_tokens
from headrace.cache.tiers import MAX_FETCHED_BLOCKS, BlockKey, BlockTiers, block_key, namespace_key
from headrace.core.step import BlockTransfer, TransferKind
from tests.marks import needs_asserts

_, OFFLOAD, RESTORE, SPILL, FETCH = TransferKind


def key(number: int) -> BlockKey:
    return block_key(namespace_key(""), pack_tokens([number]))


def keep(tiers: BlockTiers, *numbers: int) -> None:
    """Let the device blocks of these numbers leave, each with a name of its own."""
    for number in numbers:
        tiers.name_blocks([number], namespace_key(""), [pack_tokens([number])])
        tiers.keep([number])


def done(tiers: BlockTiers, *failed: BlockTransfer) -> list[tuple[TransferKind, int, int]]:
    """Let the plan be executed; its transfers."""
    transfers = tiers.take_transfers()
    tiers.settle(failed)
    assert tiers.violations([]) == []
    return [tuple(transfer) for transfer in transfers]


def test_names_are_those_of_whole_prefixes():
    first, second = pack_tokens([1, 2]), pack_tokens([3, 4])
    assert block_key(block_key(namespace_key(""), first), second) == block_key(
        block_key(namespace_key(""), first), second
    )
    names = {
        block_key(block_key(namespace_key(salt), one), other)
        for salt in ("", "a")
        for one, other in ((first, second), (second, first), (first, first), (first + second, b""))
    }
    assert len(names) == 8


def test_a_block_that_leaves_is_copied_once():
    tiers = BlockTiers(num_host_blocks=4)
    keep(tiers, 7)
    assert done(tiers) == [(OFFLOAD, 7, 0)]
    keep(tiers, 7)
    assert done(tiers) == []
    assert tiers.host.find(key(7)) == 0


def test_the_least_recently_used_is_given_up_first():
    tiers = BlockTiers(num_host_blocks=2)
    keep(tiers, 1, 2)
    tiers.host.touch(key(1))
    keep(tiers, 3)
    assert [tiers.host.find(key(number)) is not None for number in (1, 2, 3)] == [True, False, True]
    assert tiers.stats.dropped_blocks == 1


def test_what_is_pinned_stays_as_long_as_anybody_needs_it():
    tiers = BlockTiers(num_host_blocks=1)
    keep(tiers, 1)
    assert tiers.host.pin(key(1)) == tiers.host.pin(key(1)) == 0
    tiers.host.unpin(key(1))
    keep(tiers, 2)
    assert tiers.host.find(key(2)) is None
    tiers.host.unpin(key(1))
    keep(tiers, 2)
    assert tiers.host.find(key(1)) is None
    assert tiers.host.find(key(2)) == 0


def test_what_the_host_gives_up_goes_to_disk_before_its_slot_is_written():
    tiers = BlockTiers(num_host_blocks=1, num_disk_blocks=1)
    keep(tiers, 1, 2)
    assert done(tiers) == [(OFFLOAD, 1, 0), (SPILL, 0, 0), (OFFLOAD, 2, 0)]
    keep(tiers, 3)
    assert done(tiers) == [(SPILL, 0, 0), (OFFLOAD, 3, 0)]
    assert tiers.disk.find(key(1)) is None
    assert tiers.disk.find(key(2)) == 0


def test_a_fetched_block_can_be_used_after_the_plan_and_not_before():
    tiers = BlockTiers(num_host_blocks=2, num_disk_blocks=4)
    keep(tiers, 1, 2, 3)
    done(tiers)
    assert tiers.fetch(key(1))
    assert tiers.is_arriving(key(1))
    assert tiers.host.find(key(1)) is None
    slot = tiers.disk.find(key(1))
    assert (FETCH, slot, 1) in done(tiers)
    assert tiers.host.find(key(1)) == 1
    assert not tiers.is_arriving(key(1))


def test_making_room_for_a_fetch_never_overwrites_what_is_fetched():
    tiers = BlockTiers(num_host_blocks=1, num_disk_blocks=1)
    keep(tiers, 1, 2)
    done(tiers)
    assert tiers.fetch(key(1))
    assert done(tiers) == [(FETCH, 0, 0)], "there is no other slot on disk for what had to make room"
    assert tiers.host.find(key(1)) == 0


def test_a_failed_fetch_is_forgotten_everywhere():
    tiers = BlockTiers(num_host_blocks=1, num_disk_blocks=2)
    keep(tiers, 1, 2)
    done(tiers)
    tiers.fetch(key(1))
    [*_, fetch] = tiers.take_transfers()
    tiers.settle([fetch])
    assert tiers.host.find(key(1)) is None
    assert tiers.disk.find(key(1)) is None
    assert tiers.stats.failed_blocks == 1
    assert tiers.violations([]) == []


def test_a_plan_reads_only_so_much_from_disk():
    tiers = BlockTiers(num_host_blocks=64, num_disk_blocks=64)
    keep(tiers, *range(128))
    done(tiers)
    fetched = [number for number in range(64) if tiers.fetch(key(number))]
    assert len(fetched) == MAX_FETCHED_BLOCKS


def test_of_a_plan_that_failed_nothing_is_believed():
    tiers = BlockTiers(num_host_blocks=2, num_disk_blocks=2)
    keep(tiers, 1, 2)
    done(tiers)
    keep(tiers, 3)
    tiers.fetch(key(1))
    tiers.take_transfers()
    tiers.abandon()
    assert [tiers.host.find(key(number)) for number in (1, 3)] == [None, None]
    assert tiers.violations([]) == []


def test_slots_that_are_held_have_no_name_and_stay():
    tiers = BlockTiers(num_host_blocks=2)
    keep(tiers, 1)
    slots = tiers.hold([5, 6])
    assert slots is not None
    assert tiers.host.find(key(1)) is None
    assert tiers.hold([7]) is None
    assert tiers.violations(slots) == []
    assert tiers.violations([]) != []
    tiers.let_go(slots)
    done(tiers)


def test_without_tiers_nothing_is_kept_and_nothing_copied():
    tiers = BlockTiers()
    tiers.keep([1, 2, 3])
    assert tiers.hold([1]) is None
    assert tiers.take_transfers() == ()


@needs_asserts
def test_a_disk_without_a_host_tier_is_no_use():
    with pytest.raises(AssertionError):
        BlockTiers(0, 4)


def test_a_tier_that_may_not_grow_gives_up_what_it_keeps_before_it_takes_more():
    tiers = BlockTiers(num_host_blocks=4)
    keep(tiers, 1, 2)
    done(tiers)
    tiers.host.stop_growing()
    assert (tiers.host.num_untouched, tiers.host.num_available) == (2, 2)
    keep(tiers, 3)
    done(tiers)
    assert [tiers.host.find(key(number)) is not None for number in (1, 2, 3)] == [False, True, True]
    assert tiers.host.num_untouched == 2
    tiers.host.resume_growing()
    keep(tiers, 4)
    done(tiers)
    assert tiers.host.num_untouched == 1


def test_a_tier_that_never_held_anything_keeps_nothing_while_it_may_not_grow():
    tiers = BlockTiers(num_host_blocks=2)
    tiers.host.stop_growing()
    keep(tiers, 1)
    assert tiers.hold([5]) is None
    assert done(tiers) == []
