from __future__ import annotations

import random
import time

import pytest

from headrace.cache.integrity import tree_violations
from headrace.cache.packed_tokens import pack_tokens
from headrace.cache.radix_node import RadixNode
from headrace.cache.radix_tree import RadixTree
from tests.marks import needs_asserts


def insert(tree: RadixTree, token_ids: list[int], block_ids: list[int], namespace: str = "") -> RadixNode:
    """Cache tokens in the given blocks as a sequence that computed them all would, and keep them locked.

    ``block_ids`` is as long as the whole prefix; entries for what is cached already are not used.
    """
    match = tree.match(namespace, pack_tokens(token_ids))
    num_known = len(match.block_ids)
    rest = pack_tokens(token_ids[num_known * tree.block_size :])
    node, _ = tree.insert(tree.lock(match), rest, block_ids[num_known:])
    return node


def cache(tree: RadixTree, token_ids: list[int], block_ids: list[int], namespace: str = "") -> None:
    tree.unlock(insert(tree, token_ids, block_ids, namespace))


def cached(tree: RadixTree, token_ids: list[int], namespace: str = "") -> list[int]:
    return tree.match(namespace, pack_tokens(token_ids)).block_ids


def test_packed_tokens_are_equal_exactly_where_the_tokens_are() -> None:
    assert pack_tokens([1, 2]) == pack_tokens((1, 2))
    assert pack_tokens([1, 2]) != pack_tokens([2, 1])
    assert pack_tokens([256]) != pack_tokens([1])
    assert pack_tokens([]) == b""


def test_a_node_shows_its_tokens_as_they_were_given() -> None:
    tree = RadixTree(2)
    assert insert(tree, [5, 0, 70_000, 2**31], [0, 1]).token_ids == [5, 0, 70_000, 2**31]


def test_an_empty_tree_matches_nothing_and_keeps_no_namespace() -> None:
    tree = RadixTree(2)
    assert cached(tree, [1, 2, 3, 4]) == []
    assert tree.namespaces == []


def test_a_match_covers_whole_blocks_only() -> None:
    tree = RadixTree(2)
    cache(tree, [1, 2, 3, 4], [7, 8])
    assert cached(tree, [1]) == []
    assert cached(tree, [1, 2]) == [7]
    assert cached(tree, [1, 2, 3]) == [7]
    assert cached(tree, [1, 2, 3, 9]) == [7]
    assert cached(tree, [1, 2, 3, 4, 5]) == [7, 8]


def test_equal_blocks_after_different_prefixes_are_different_blocks() -> None:
    tree = RadixTree(2)
    cache(tree, [1, 1, 5, 5], [0, 1])
    cache(tree, [2, 2, 5, 5], [2, 3])
    assert cached(tree, [1, 1, 5, 5]) == [0, 1]
    assert cached(tree, [2, 2, 5, 5]) == [2, 3]
    assert cached(tree, [5, 5]) == []


@pytest.mark.parametrize("num_common", range(1, 9))
def test_a_match_may_end_after_any_block_of_an_edge(num_common: int) -> None:
    tree = RadixTree(2)
    cache(tree, list(range(16)), list(range(8)))
    other = [*range(2 * num_common), *[99] * (16 - 2 * num_common)]
    assert cached(tree, other) == list(range(num_common))


def test_matching_changes_nothing() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2, 3], [0, 1, 2])
    tree.match("", pack_tokens([1, 2, 9]))
    tree.match("new", pack_tokens([1]))
    assert tree.num_nodes == 1
    assert tree.namespaces == [""]


def test_locking_a_match_inside_an_edge_splits_it_and_locks_the_upper_part_only() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2, 3], [0, 1, 2])
    node = tree.lock(tree.match("", pack_tokens([1, 2])))
    assert (node.token_ids, node.block_ids) == ([1, 2], [0, 1])
    assert (tree.num_nodes, tree.num_blocks, tree.num_evictable_blocks) == (2, 3, 1)
    assert cached(tree, [1, 2, 3]) == [0, 1, 2]
    assert tree_violations(tree, [node]) == []


def test_a_holder_of_the_lower_part_still_holds_it_after_a_split() -> None:
    tree = RadixTree(1)
    lower = insert(tree, [1, 2, 3], [0, 1, 2])
    upper = tree.lock(tree.match("", pack_tokens([1])))
    assert (lower.token_ids, lower.parent) == ([2, 3], upper)
    tree.unlock(upper)
    assert tree.num_evictable_blocks == 0
    assert tree_violations(tree, [lower]) == []
    tree.unlock(lower)
    assert tree.num_evictable_blocks == 3


def test_inserting_under_a_lone_leaf_makes_it_longer() -> None:
    tree = RadixTree(1)
    node = insert(tree, [1], [0])
    for token_id in range(2, 50):
        assert tree.insert(node, pack_tokens([token_id]), [token_id]) == (node, [token_id])
    assert tree.num_nodes == 1
    assert cached(tree, list(range(1, 50))) == [0, *range(2, 50)]


def test_inserting_under_a_leaf_that_another_holds_leaves_the_others_prefix_alone() -> None:
    tree = RadixTree(1)
    first = insert(tree, [1], [0])
    second = tree.lock(tree.match("", pack_tokens([1])))
    node, _ = tree.insert(first, pack_tokens([2]), [1])
    assert node is not second
    assert second.block_ids == [0]
    assert tree_violations(tree, [node, second]) == []


def test_inserting_what_is_cached_returns_the_cached_blocks_and_takes_none() -> None:
    tree = RadixTree(1)
    first, second = insert(tree, [1], [0]), tree.lock(tree.match("", pack_tokens([1])))
    first, _ = tree.insert(first, pack_tokens([2, 3]), [1, 2])
    second, block_ids = tree.insert(second, pack_tokens([2, 4]), [8, 9])
    assert block_ids == [1, 9]
    assert tree.num_blocks == 4
    assert tree_violations(tree, [first, second]) == []


def test_a_locked_node_keeps_its_ancestors() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2], [0, 1])
    cache(tree, [1, 3], [0, 2])
    node = insert(tree, [1, 3, 4], [0, 2, 3])
    assert tree.num_evictable_blocks == 1
    assert tree.evict(99) == [1]
    assert cached(tree, [1, 3, 4]) == [0, 2, 3]
    tree.unlock(node)
    assert sorted(tree.evict(99)) == [0, 2, 3]
    assert tree.namespaces == []


def test_two_locks_take_two_unlocks() -> None:
    tree = RadixTree(1)
    node = insert(tree, [1], [0])
    assert tree.lock(tree.match("", pack_tokens([1]))) is node
    tree.unlock(node)
    assert tree.evict(1) == []
    tree.unlock(node)
    assert tree.evict(1) == [0]


def test_the_leaf_unlocked_longest_ago_is_evicted_first() -> None:
    tree = RadixTree(1)
    for token_id in (1, 2, 3):
        cache(tree, [token_id], [token_id])
    tree.unlock(tree.lock(tree.match("", pack_tokens([1]))))
    assert [tree.evict(1) for _ in range(4)] == [[2], [3], [1], []]


def test_eviction_takes_from_the_end_of_a_leaf_and_leaves_its_beginning() -> None:
    tree = RadixTree(2)
    cache(tree, [1, 1, 2, 2, 3, 3], [0, 1, 2])
    assert tree.evict(2) == [1, 2]
    assert cached(tree, [1, 1, 2, 2, 3, 3]) == [0]
    assert tree_violations(tree, []) == []


def test_a_parent_goes_only_after_its_last_child() -> None:
    tree = RadixTree(1)
    cache(tree, [1, 2], [0, 1])
    cache(tree, [1, 3], [0, 2])
    assert [tree.evict(1) for _ in range(3)] == [[1], [2], [0]]


def test_namespaces_share_nothing_and_vanish_when_empty() -> None:
    tree = RadixTree(1)
    cache(tree, [1], [0], "a")
    node = insert(tree, [1], [1], "b")
    assert cached(tree, [1], "a") == [0]
    assert cached(tree, [1], "b") == [1]
    assert cached(tree, [1], "") == []
    assert tree.evict(9) == [0]
    assert tree.namespaces == ["b"]
    tree.unlock(node)
    assert tree.evict(9) == [1]
    assert tree.namespaces == []


def test_a_namespace_lives_while_its_empty_prefix_is_held() -> None:
    tree = RadixTree(1)
    root = tree.lock(tree.match("a", b""))
    assert tree.namespaces == ["a"]
    assert tree.lock(tree.match("a", pack_tokens([1]))) is root
    tree.unlock(root)
    assert tree.namespaces == ["a"]
    tree.unlock(root)
    assert tree.namespaces == []


@needs_asserts
def test_a_match_of_a_new_namespace_goes_stale_when_the_namespace_appears() -> None:
    tree = RadixTree(1)
    early, late = tree.match("a", b""), tree.match("a", b"")
    tree.lock(early)
    with pytest.raises(AssertionError, match="out of date"):
        tree.lock(late)


def split_at_every_block(tree: RadixTree, token_ids: list[int]) -> None:
    """Turn one cached edge into a path of one-block nodes, as prompts that part from it everywhere would."""
    for end in range(len(token_ids) - tree.block_size, 0, -tree.block_size):
        tree.unlock(tree.lock(tree.match("", pack_tokens(token_ids[:end]))))


def test_a_path_longer_than_pythons_stack_is_held_and_given_up() -> None:
    tree = RadixTree(1)
    token_ids = list(range(3_000))
    cache(tree, token_ids, token_ids)
    split_at_every_block(tree, token_ids)
    assert tree.num_nodes == 3_000
    node = tree.lock(tree.match("", pack_tokens(token_ids)))
    assert len(node.path()) == 3_001
    assert tree.num_evictable_blocks == 0
    tree.unlock(node)
    assert tree.evict(4_000) == token_ids[::-1]


def test_matching_32k_tokens_in_a_tree_of_10k_nodes_takes_under_2_ms() -> None:
    rng = random.Random(0)
    tree = RadixTree(16)
    prompt = [rng.randrange(150_000) for _ in range(32_768)]
    cache(tree, prompt, list(range(2_048)))
    split_at_every_block(tree, prompt)
    for block_id in range(2_048, 10_000):
        cache(tree, [rng.randrange(150_000) for _ in range(16)], [block_id])
    assert tree.num_nodes == 10_000

    durations = []
    for _ in range(50):
        start = time.perf_counter()
        match = tree.match("", pack_tokens(prompt))
        durations.append(time.perf_counter() - start)
        assert len(match.block_ids) == 2_048
    assert min(durations) < 2e-3
