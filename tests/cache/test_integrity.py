"""Every way the books can go wrong, done on purpose: noticed by ``check``, mended by ``heal``."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.radix_node import RadixNode
from headrace.core.sequence import Sequence, SequenceStatus
from tests.cache.sequences import admit, compute, leave_cached, make_sequence

NUM_BLOCKS = 16


@pytest.fixture
def kv() -> KVCacheManager:
    """Two prompts cached in one-token blocks, parting after their first."""
    kv = KVCacheManager(NUM_BLOCKS, 1, enable_prefix_caching=True)
    leave_cached(kv, make_sequence(0, [1, 2, 3]))
    leave_cached(kv, make_sequence(1, [1, 5, 6]))
    assert kv.check() == []
    return kv


def upper_node(kv: KVCacheManager) -> RadixNode:
    [node] = [node for node in kv._prefixes.tree.nodes() if node.token_ids == [1]]
    return node


def lose_a_block(kv: KVCacheManager) -> None:
    kv._pool.allocate(1)


def free_a_cached_block(kv: KVCacheManager) -> None:
    kv._pool.free(upper_node(kv).block_ids)


def cache_a_block_twice(kv: KVCacheManager) -> None:
    [first, second] = upper_node(kv).children.values()
    first.block_ids[0] = second.block_ids[0]


def leak_a_lock(kv: KVCacheManager) -> None:
    kv._prefixes.tree.lock(kv._prefixes.match(make_sequence(9, [1]), 1))


def drop_a_lock_too_many(kv: KVCacheManager) -> None:
    upper_node(kv).lock_count -= 1


def lose_a_lock_of_a_namespace(kv: KVCacheManager) -> None:
    node = kv._prefixes.tree.lock(kv._prefixes.match(make_sequence(9, [1], "other"), 1))
    node.lock_count -= 1


def miscount_nodes(kv: KVCacheManager) -> None:
    kv._prefixes.tree._num_nodes += 1


def miscount_cached_blocks(kv: KVCacheManager) -> None:
    kv._prefixes.tree._num_blocks += 1


def miscount_evictable_blocks(kv: KVCacheManager) -> None:
    kv._prefixes.tree._num_evictable_blocks -= 1


def put_a_parent_before_its_children(kv: KVCacheManager) -> None:
    kv._prefixes.tree._unlocked.move_to_end(upper_node(kv), last=False)


def forget_to_queue_a_leaf(kv: KVCacheManager) -> None:
    kv._prefixes.tree._unlocked.popitem(last=False)


def break_a_link_to_a_parent(kv: KVCacheManager) -> None:
    next(iter(upper_node(kv).children.values())).parent = None


def file_a_node_under_a_wrong_key(kv: KVCacheManager) -> None:
    children = upper_node(kv).children
    children[b"wrong"] = children.popitem()[1]


def lose_a_nodes_tokens(kv: KVCacheManager) -> None:
    upper_node(kv).packed_tokens.clear()


def abandon_a_finished_sequence(kv: KVCacheManager) -> None:
    seq = make_sequence(9, [1, 2, 7, 8])
    admit(kv, seq)
    compute(kv, seq, 1)
    assert kv.extend(seq, 2)
    seq.status = SequenceStatus.FINISHED


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lose_a_block, r"blocks \[5\] have no owner"),
        (free_a_cached_block, r"blocks \[0\] have more than one owner"),
        (cache_a_block_twice, "have more than one owner"),
        (leak_a_lock, "should have 0 locks"),
        (drop_a_lock_too_many, "should have 0 locks"),
        (lose_a_lock_of_a_namespace, "namespace 'other' is kept for nothing"),
        (miscount_nodes, "3 nodes in the tree, 4 counted"),
        (miscount_cached_blocks, "5 blocks in the tree, 6 counted"),
        (miscount_evictable_blocks, "5 blocks unlocked, 4 counted"),
        (put_a_parent_before_its_children, "would be evicted after its parent"),
        (forget_to_queue_a_leaf, "not made of just the unlocked nodes"),
        (break_a_link_to_a_parent, "does not know it"),
        (file_a_node_under_a_wrong_key, "under a key that is not its first block"),
        (lose_a_nodes_tokens, "has 0 bytes of tokens for its blocks"),
        (abandon_a_finished_sequence, "is finished and was not released"),
    ],
)
def test_damage_is_noticed_named_and_mended(
    kv: KVCacheManager, damage: Callable[[KVCacheManager], None], complaint: str
) -> None:
    damage(kv)
    violations = kv.check()
    assert re.search(complaint, "; ".join(violations)), violations
    assert kv.heal([]) != []
    assert kv.check() == []
    assert kv.num_available_blocks == NUM_BLOCKS
    leave_cached(kv, make_sequence(20, list(range(NUM_BLOCKS))))
    assert kv.check() == []


def test_healing_says_who_had_what(kv: KVCacheManager) -> None:
    abandon_a_finished_sequence(kv)
    repairs = kv.heal([])
    assert any("took 5 blocks from Sequence(9, request-9#0" in line for line in repairs), repairs
    assert any("to the free list" in line for line in repairs), repairs


def test_healing_keeps_a_sound_cache(kv: KVCacheManager) -> None:
    lose_a_block(kv)
    kv.heal([])
    seq = make_sequence(9, [1, 5, 6, 7])
    admit(kv, seq)
    assert seq.num_computed_tokens == 3


def test_healing_drops_a_cache_whose_blocks_have_two_owners(kv: KVCacheManager) -> None:
    cache_a_block_twice(kv)
    kv.heal([])
    assert kv.num_free_blocks == NUM_BLOCKS


def test_healing_leaves_live_sequences_what_they_hold(kv: KVCacheManager) -> None:
    live, stray = make_sequence(9, [1, 2, 3, 4]), make_sequence(10, [1, 5, 8, 9])
    for seq in (live, stray):
        admit(kv, seq)
        assert kv.extend(seq, 1)
    before = live.block_table.ids.tolist()
    kv.heal([live])
    assert kv.check() == []
    assert live.block_table.ids.tolist() == before
    assert len(stray.block_table) == 0
    assert kv.num_private_blocks == 1
    compute(kv, live, 1)
    kv.release(live)
    kv.release(stray)
    assert kv.check() == []


def test_healing_makes_the_blocks_of_a_vanished_prefix_the_sequences_own(kv: KVCacheManager) -> None:
    seq = make_sequence(9, [1, 2, 3, 4])
    admit(kv, seq)
    break_a_link_to_a_parent(kv)
    kv.heal([seq])
    assert kv.check() == []
    assert (seq.prefix_node, seq.num_shared_blocks, len(seq.block_table)) == (None, 0, 3)
    compute(kv, seq, 1)
    kv.release(seq)
    assert kv.num_free_blocks == NUM_BLOCKS


def test_a_block_claimed_by_two_live_sequences_is_named_until_one_ends(kv: KVCacheManager) -> None:
    first, second = make_sequence(9, [8, 8]), make_sequence(10, [9, 9])
    for seq in (first, second):
        admit(kv, seq)
        assert kv.extend(seq, 1)
    second.block_table.replace(0, first.block_table.ids.tolist())
    kv.heal([first, second])
    assert any("more than one owner" in line for line in kv.check())
    kv.heal([first])
    assert kv.check() == []


def test_waiting_sequences_given_as_live_may_still_be_admitted(kv: KVCacheManager) -> None:
    waiting: Sequence = make_sequence(9, [1, 2])
    lose_a_block(kv)
    kv.heal([waiting])
    admit(kv, waiting)
    assert waiting.num_computed_tokens == 1
