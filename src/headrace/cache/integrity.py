"""The books of the KV cache audited: what its design promises, recomputed slowly and independently.

Only reads. How to go on when a promise is broken is ``KVCacheManager.heal``'s business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from headrace.cache.block_pool import BlockPool
from headrace.cache.packed_tokens import TOKEN_BYTES
from headrace.cache.radix_node import RadixNode
from headrace.cache.radix_tree import RadixTree
from headrace.core.sequence import PrefixNode, Sequence


def violations(pool: BlockPool, tree: RadixTree, holders: Collection[Sequence]) -> list[str]:
    """Every broken promise in words; empty when all is well. Cost: O(blocks + nodes)."""
    held_nodes = [seq.prefix_node for seq in holders if seq.prefix_node is not None]
    return [
        *_ownership_violations(pool, tree, holders),
        *tree_violations(tree, held_nodes),
        *_holder_violations(tree, holders),
    ]


def tree_violations(tree: RadixTree, held_nodes: Iterable[PrefixNode]) -> list[str]:
    """The part of ``violations`` that concerns the tree alone, given who holds it where."""
    return [
        *link_violations(tree),
        *_lock_violations(tree, held_nodes),
        *_order_violations(tree),
        *_total_violations(tree),
    ]


def owned_block_ids(tree: RadixTree, holders: Collection[Sequence]) -> list[int]:
    """Every block that is not free, as often as a node or a sequence claims to own it."""
    cached = chain.from_iterable(node.block_ids for node in tree.nodes())
    private = chain.from_iterable(seq.private_block_ids for seq in holders)
    return [*cached, *private]


def _ownership_violations(pool: BlockPool, tree: RadixTree, holders: Collection[Sequence]) -> Iterator[str]:
    """free + private + cached = num_blocks, block by block."""
    block_ids = owned_block_ids(tree, holders)
    block_ids += pool.free_ids
    if sorted(block_ids) == list(range(pool.num_blocks)):
        return
    owners = Counter(block_ids)
    if lost := [block_id for block_id in range(pool.num_blocks) if block_id not in owners]:
        yield f"blocks {lost} have no owner"
    if contested := sorted(block_id for block_id, count in owners.items() if count > 1):
        yield f"blocks {contested} have more than one owner"
    if unknown := sorted(block_id for block_id in owners if not 0 <= block_id < pool.num_blocks):
        yield f"blocks {unknown} are not in the pool of {pool.num_blocks}"


def link_violations(tree: RadixTree) -> Iterator[str]:
    """Parents and children agree, and a child stands under the tokens of its first block."""
    key_bytes = tree.block_size * TOKEN_BYTES
    for node in tree.nodes():
        is_open = not node.children and len(node.block_ids) == 1 and 0 < len(node.packed_tokens) < key_bytes
        if len(node.packed_tokens) != len(node.block_ids) * key_bytes and not is_open:
            yield f"{node} has {len(node.packed_tokens)} bytes of tokens for its blocks"
        for key, child in node.children.items():
            if child.parent is not node or child.namespace != node.namespace:
                yield f"{child} is a child of {node} and does not know it"
            if not child.block_ids or key != child.packed_tokens[:key_bytes]:
                yield f"{child} stands under a key that is not its first block"


def _lock_violations(tree: RadixTree, held_nodes: Iterable[PrefixNode]) -> Iterator[str]:
    """A node has one lock per holder and one per locked child."""
    locks = Counter(held_nodes)
    locks.update(node.parent for node in tree.nodes() if node.lock_count > 0 and node.parent is not None)
    for node in tree.nodes():
        expected = locks.get(node, 0)
        if node.lock_count != expected:
            yield f"{node} should have {expected} locks"
        if node.parent is None and expected == 0 and not node.children:
            yield f"namespace {node.namespace!r} is kept for nothing"


def _order_violations(tree: RadixTree) -> Iterator[str]:
    """Just the unlocked nodes wait for eviction, children before parents."""
    rank: dict[RadixNode | None, int] = {node: index for index, node in enumerate(tree.eviction_order())}
    cached = [node for node in tree.nodes() if node.parent is not None]
    if rank.keys() != {node for node in cached if node.lock_count == 0}:
        yield "the eviction order is not made of just the unlocked nodes"
    for node in cached:
        if node.parent in rank and rank[node.parent] < rank.get(node, -1):
            yield f"{node} would be evicted after its parent"


def _total_violations(tree: RadixTree) -> Iterator[str]:
    cached = [node for node in tree.nodes() if node.parent is not None]
    if len(cached) != tree.num_nodes:
        yield f"{len(cached)} nodes in the tree, {tree.num_nodes} counted"
    num_blocks = sum(len(node.block_ids) for node in cached)
    if num_blocks != tree.num_blocks:
        yield f"{num_blocks} blocks in the tree, {tree.num_blocks} counted"
    num_unlocked = sum(len(node.block_ids) for node in cached if node.lock_count == 0)
    if num_unlocked != tree.num_evictable_blocks:
        yield f"{num_unlocked} blocks unlocked, {tree.num_evictable_blocks} counted"


def _holder_violations(tree: RadixTree, holders: Collection[Sequence]) -> Iterator[str]:
    """A sequence shares exactly the blocks on the path to its node, and a finished one has none."""
    nodes: set[PrefixNode | None] = set(tree.nodes())
    for seq in holders:
        if seq.is_finished:
            yield f"{seq} is finished and was not released"
        if seq.prefix_node is not None and seq.prefix_node not in nodes:
            yield f"{seq} has locked a node that is not in the tree"
            continue
        shared = _path_block_ids(seq.prefix_node)
        if seq.block_table.ids[: seq.num_shared_blocks].tolist() != shared:
            yield f"{seq} does not share just the {len(shared)} blocks its node stands for"


def _path_block_ids(node: PrefixNode | None) -> list[int]:
    if not isinstance(node, RadixNode):
        return []
    return [block_id for step in node.path() for block_id in step.block_ids]
