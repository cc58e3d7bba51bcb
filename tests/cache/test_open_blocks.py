"""The beginning of a block, copied instead of computed."""

from __future__ import annotations

import pytest

from headrace.cache.integrity import tree_violations
from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.packed_tokens import num_common_tokens, pack_tokens
from headrace.cache.radix_tree import RadixTree
from headrace.cache.tiers import BlockTiers
from headrace.core.sequence import Sequence
from headrace.core.step import BlockTransfer, TransferKind
from tests.cache.sequences import admit, compute, leave_cached, make_sequence
from tests.marks import needs_asserts


def caching(num_blocks: int, block_size: int, tiers: BlockTiers | None = None) -> KVCacheManager:
    return KVCacheManager(num_blocks, block_size, enable_prefix_caching=True, tiers=tiers)


def copy_of(source: int, target: int) -> BlockTransfer:
    return BlockTransfer(TransferKind.COPY, source, target)


def start(kv: KVCacheManager, seq: Sequence) -> tuple[BlockTransfer, ...]:
    """Admit a sequence with room for all of it; what the plan has to copy."""
    admit(kv, seq)
    assert kv.extend(seq, seq.num_pending_tokens)
    return kv.take_transfers()


def test_common_tokens_are_counted_whole() -> None:
    for first, second, expected in (
        ([], [], 0),
        ([1], [], 0),
        ([1], [1], 1),
        ([1, 2, 3], [1, 2, 4], 2),
        ([256], [1], 0),
        ([7, 1], [7, 257], 1),
        ([1, 2], [1, 2, 3], 2),
        ([0, 0], [0, 2**31], 1),
        ([2**32 - 1, 5], [2**32 - 1, 5], 2),
    ):
        assert num_common_tokens(pack_tokens(first), pack_tokens(second)) == expected
        assert num_common_tokens(bytearray(pack_tokens(second)), pack_tokens(first)) == expected


def test_a_sequence_goes_on_from_the_last_block_of_one_that_ended() -> None:
    kv = caching(8, 8)
    leave_cached(kv, make_sequence(0, list(range(14))))
    assert (kv.num_cached_blocks, kv.num_evictable_blocks, kv.num_private_blocks) == (2, 2, 0)
    seq = make_sequence(1, [*range(14), 50, 51])
    assert start(kv, seq) == (copy_of(1, 2),)
    assert seq.num_computed_tokens == 14
    assert seq.block_table.ids.tolist() == [0, 2]
    assert seq.num_shared_blocks == 1
    assert (kv.stats.query_tokens, kv.stats.hit_tokens) == (13 + 15, 8 + 6)


def test_a_sequence_departs_in_the_middle_of_a_full_block() -> None:
    kv = caching(8, 8)
    leave_cached(kv, make_sequence(0, list(range(25))))
    seq = make_sequence(1, [*range(12), 50, 51, 52, 53, 54, 55])
    assert start(kv, seq) == (copy_of(1, 3),)
    assert seq.num_computed_tokens == 12


def test_a_sequence_goes_on_from_the_block_that_another_is_filling() -> None:
    kv = caching(8, 8)
    first = make_sequence(0, list(range(14)))
    admit(kv, first)
    compute(kv, first, 14)
    second = make_sequence(1, [*range(12), 60])
    assert start(kv, second) == (copy_of(1, 2),)
    assert second.num_computed_tokens == 12
    third = make_sequence(2, [*range(14), 70])
    assert start(kv, third) == (copy_of(1, 3),)
    assert third.num_computed_tokens == 14


def test_nothing_is_copied_from_a_block_whose_own_copy_is_still_to_be_made() -> None:
    kv = caching(8, 8)
    leave_cached(kv, make_sequence(0, list(range(14))))
    second = make_sequence(1, [*range(14), 50])
    third = make_sequence(2, [*range(14), 60])
    assert start(kv, second) == (copy_of(1, 2),)
    assert start(kv, third) == (copy_of(1, 3),)
    kv.release(second)  # the plan failed: what it was to copy is not there
    kv.release(third)
    assert kv.num_cached_blocks == 2
    fourth = make_sequence(3, [*range(14), 50, 60])
    ((_, source, _),) = start(kv, fourth)
    assert source == 1
    assert fourth.num_computed_tokens == 14


def test_a_few_tokens_are_worth_a_copy_but_not_a_block_that_nobody_needs() -> None:
    kv = caching(8, 8)
    leave_cached(kv, make_sequence(0, list(range(9))))
    assert kv.num_cached_blocks == 1, "one token is not worth a block"
    leave_cached(kv, make_sequence(1, list(range(16))))
    seq = make_sequence(2, [*range(9), 50, 51])
    assert start(kv, seq) == (copy_of(1, 2),)
    assert seq.num_computed_tokens == 9


def test_no_more_is_copied_than_may_be_taken_from_the_cache() -> None:
    kv = caching(8, 8)
    leave_cached(kv, make_sequence(0, list(range(16))))
    seq = make_sequence(1, list(range(16)))
    kv.acquire(seq, 12)
    assert seq.num_computed_tokens == 12
    assert kv.extend(seq, 4)
    assert kv.take_transfers() == (copy_of(1, 2),)


def test_nothing_is_copied_across_salts_or_without_the_cache() -> None:
    kv = caching(8, 8)
    leave_cached(kv, make_sequence(0, list(range(14)), "mine"))
    seq = make_sequence(1, list(range(14)), "yours")
    assert start(kv, seq) == ()
    off = KVCacheManager(8, 8, enable_prefix_caching=False)
    leave_cached(off, make_sequence(0, list(range(14))))
    assert off.num_free_blocks == 8
    assert start(off, make_sequence(1, list(range(14)))) == ()


def test_a_copy_that_finds_no_room_is_not_made() -> None:
    kv = caching(3, 8)
    leave_cached(kv, make_sequence(0, list(range(6))))
    blocker = make_sequence(1, list(range(100, 116)))
    start(kv, blocker)
    seq = make_sequence(2, [*range(6), *range(50, 60)])
    admit(kv, seq)
    assert seq.num_computed_tokens == 6
    assert not kv.extend(seq, 10)
    kv.release(seq)
    assert kv.take_transfers() == ()
    assert kv.check() == []


def test_a_copy_may_take_the_place_of_what_it_was_copied_from() -> None:
    kv = caching(2, 8)
    leave_cached(kv, make_sequence(0, list(range(6))))
    blocker = make_sequence(1, [100])
    start(kv, blocker)
    seq = make_sequence(2, [*range(6), 50])
    (transfer,) = start(kv, seq)
    assert transfer == copy_of(seq.block_table.ids[0], seq.block_table.ids[0])


def test_equal_last_blocks_are_kept_once_and_a_longer_one_replaces_a_shorter() -> None:
    kv = caching(16, 8)
    for seq_id in range(4):
        leave_cached(kv, make_sequence(seq_id, list(range(12))))
    assert kv.num_cached_blocks == 2
    leave_cached(kv, make_sequence(4, list(range(15))))
    assert kv.num_cached_blocks == 2
    leave_cached(kv, make_sequence(5, list(range(11))))
    assert kv.num_cached_blocks == 2
    seq = make_sequence(6, [*range(15), 9])
    start(kv, seq)
    assert seq.num_computed_tokens == 15
    assert kv.check() == []


def test_a_last_block_is_evicted_before_what_it_follows() -> None:
    kv = caching(3, 4)
    leave_cached(kv, make_sequence(0, [1, 2, 3, 4, 5, 6]))
    seq = make_sequence(1, [9] * 6)
    start(kv, seq)
    kv.release(seq)
    again = make_sequence(2, [1, 2, 3, 4, 5, 6])
    start(kv, again)
    assert again.num_computed_tokens == 4


def test_a_last_block_that_is_used_stays_longer() -> None:
    kv = caching(3, 8)
    leave_cached(kv, make_sequence(0, [1] * 6))
    leave_cached(kv, make_sequence(1, [2] * 6))
    seq = make_sequence(2, [*[1] * 6, 5])
    start(kv, seq)
    leave_cached(kv, make_sequence(3, [3] * 6))  # pushes out the least recently used
    kv.release(seq)
    assert kv.num_cached_tokens(make_sequence(4, [1] * 8), 7) == 0, "only whole blocks are foretold"
    again = make_sequence(5, [*[1] * 6, 7])
    start(kv, again)
    assert again.num_computed_tokens == 6


def test_last_blocks_do_not_go_to_the_host_tier() -> None:
    tiers = BlockTiers(num_host_blocks=8)
    kv = caching(2, 4, tiers)
    leave_cached(kv, make_sequence(0, [1, 2, 3, 4, 5, 6, 7]))
    seq = make_sequence(1, [9] * 5)
    transfers = start(kv, seq)
    assert [transfer.kind for transfer in transfers] == [TransferKind.OFFLOAD]
    assert tiers.host.num_used == 1
    assert kv.check() == []


def test_a_name_does_not_outlive_the_content_it_was_given_for() -> None:
    tiers = BlockTiers(num_host_blocks=8)
    kv = caching(2, 4, tiers)
    leave_cached(kv, make_sequence(0, [1, 2, 3, 4]))
    kv.clear_prefix_cache()
    leave_cached(kv, make_sequence(1, [5, 6, 7]))
    kv.take_transfers()
    start(kv, make_sequence(2, [8] * 8))
    assert tiers.host.num_used == 0


def test_what_the_host_tier_gives_back_is_not_copied_over() -> None:
    tiers = BlockTiers(num_host_blocks=8)
    kv = caching(3, 4, tiers)
    leave_cached(kv, make_sequence(0, list(range(10))))
    leave_cached(kv, make_sequence(1, [50] * 12))
    kv.take_transfers()
    kv.settle(())
    seq = make_sequence(2, list(range(11)))
    transfers = start(kv, seq)
    assert seq.num_computed_tokens == 8
    assert TransferKind.COPY not in [transfer.kind for transfer in transfers]


@needs_asserts
def test_a_block_that_is_full_is_no_open_one() -> None:
    tree = RadixTree(2)
    node = tree.lock(tree.match("", b""))
    with pytest.raises(AssertionError):
        tree.add_open_leaf(node, pack_tokens([1, 2]), 0)
    assert tree_violations(tree, [node]) == []


def test_an_open_block_is_not_matched_as_if_it_were_full() -> None:
    tree = RadixTree(2)
    node = tree.lock(tree.match("", b""))
    tree.add_open_leaf(node, pack_tokens([1]), 0)
    assert tree.match("", pack_tokens([1])).block_ids == []
    assert tree.match("", pack_tokens([1, 2])).block_ids == []
    tree.unlock(node)
    assert tree_violations(tree, []) == []
    assert tree.evict(5) == [0]
    assert tree.namespaces == []


def test_mending_forgets_who_was_filling_what() -> None:
    kv = caching(8, 8)
    first, second = make_sequence(0, list(range(14))), make_sequence(1, list(range(100, 114)))
    for seq in (first, second):
        admit(kv, seq)
        compute(kv, seq, 14)
    kv.heal([first])
    assert kv.check() == []
    third = make_sequence(2, list(range(100, 115)))
    start(kv, third)
    assert third.num_computed_tokens == 8, "its whole block is still cached, and nobody fills the next"
    fourth = make_sequence(3, [*range(14), 1])
    assert start(kv, fourth)[-1].kind is TransferKind.COPY
