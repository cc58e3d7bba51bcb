"""The books of the KV cache audited: what its design promises, recomputed slowly and independently.

Only reads. How to go on when a promise is broken is ``KVCacheManager.heal``'s business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from headrace.cache.block_pool import BlockPool
from headrace.cache.radix_tree import RadixNode, RadixTree, pack_tokens
from headrace.core.sequence import Sequence


def violations(pool: BlockPool, tree: RadixTree, holders: Collection[Sequence]) -> list[str]:
    """Every broken promise in words; empty when all is well. Cost: O(blocks + nodes)."""
    return [
        *_ownership_violations(pool, tree, holders),
        *_tree_violations(tree),
        *_lock_violations(tree, holders),
        *_holder_violations(tree, holders),
    ]


def count_owners(tree: RadixTree, holders: Collection[Sequence]) -> Counter[int]:
    """How many nodes and sequences claim to own each block that is not free."""
    owners: Counter[int] = Counter()
    for node in tree.nodes():
        owners.update(node.block_ids)
    for seq in holders:
        owners.update(private_block_ids(seq))
    return owners


def private_block_ids(seq: Sequence) -> list[int]:
    """The blocks a sequence owns: those after the ones it shares with the tree."""
    block_ids: list[int] = seq.block_table.ids[seq.num_shared_blocks :].tolist()
    return block_ids


def _ownership_violations(pool: BlockPool, tree: RadixTree, holders: Collection[Sequence]) -> Iterator[str]:
    """free + private + cached = num_blocks, block by block."""
    owners = count_owners(tree, holders)
    owners.update(pool.free_ids)
    lost = [block_id for block_id in range(pool.num_blocks) if block_id not in owners]
    contested = sorted(block_id for block_id, count in owners.items() if count > 1)
    unknown = sorted(block_id for block_id in owners if not 0 <= block_id < pool.num_blocks)
    if lost:
        yield f"blocks {lost} have no owner"
    if contested:
        yield f"blocks {contested} have more than one owner"
    if unknown:
        yield f"blocks {unknown} are not in the pool of {pool.num_blocks}"


def _tree_violations(tree: RadixTree) -> Iterator[str]:
    """Links, keys and totals."""
    cached = [node for node in tree.nodes() if node.parent is not None]
    key_bytes = len(pack_tokens([0] * tree.block_size))
    for node in tree.nodes():
        if len(node.packed_tokens) != len(node.block_ids) * key_bytes:
            yield f"{node} has {len(node.packed_tokens)} bytes of tokens for its blocks"
        for key, child in node.children.items():
            if child.parent is not node or child.namespace != node.namespace:
                yield f"{child} is a child of {node} and does not know it"
            if not child.block_ids or key != child.packed_tokens[:key_bytes]:
                yield f"{child} stands under a key that is not its first block"
    if len(cached) != tree.num_nodes:
        yield f"{len(cached)} nodes in the tree, {tree.num_nodes} counted"
    num_blocks = sum(len(node.block_ids) for node in cached)
    if num_blocks != tree.num_blocks:
        yield f"{num_blocks} blocks in the tree, {tree.num_blocks} counted"
    num_unlocked = sum(len(node.block_ids) for node in cached if node.lock_count == 0)
    if num_unlocked != tree.num_evictable_blocks:
        yield f"{num_unlocked} blocks unlocked, {tree.num_evictable_blocks} counted"
    yield from _order_violations(tree, cached)


def _order_violations(tree: RadixTree, cached: list[RadixNode]) -> Iterator[str]:
    """The eviction order holds just the unlocked nodes, children before parents."""
    rank: dict[RadixNode | None, int] = {node: index for index, node in enumerate(tree.eviction_order())}
    if rank.keys() != {node for node in cached if node.lock_count == 0}:
        yield "the eviction order is not made of just the unlocked nodes"
    for node in cached:
        if node.parent in rank and rank[node.parent] < rank.get(node, -1):
            yield f"{node} would be evicted after its parent"


def _lock_violations(tree: RadixTree, holders: Collection[Sequence]) -> Iterator[str]:
    """A node's locks are those of its holders and one per locked child."""
    num_holders = Counter(seq.prefix_node for seq in holders)
    for node in tree.nodes():
        expected = num_holders[node] + sum(child.lock_count > 0 for child in node.children.values())
        if node.lock_count != expected:
            yield f"{node} should have {expected} locks"
        if node.parent is None and expected == 0 and not node.children:
            yield f"namespace {node.namespace!r} is kept for nothing"


def _holder_violations(tree: RadixTree, holders: Collection[Sequence]) -> Iterator[str]:
    """A sequence shares exactly the blocks on the path to its node, and a finished one has none."""
    nodes = set(tree.nodes())
    for seq in holders:
        if seq.is_finished:
            yield f"{seq} is finished and was not released"
        if seq.prefix_node is None:
            shared: list[int] = []
        elif isinstance(seq.prefix_node, RadixNode) and seq.prefix_node in nodes:
            shared = [block_id for node in seq.prefix_node.path() for block_id in node.block_ids]
        else:
            yield f"{seq} has locked a node that is not in the tree"
            continue
        if seq.block_table.ids[: seq.num_shared_blocks].tolist() != shared:
            yield f"{seq} does not share the {len(shared)} blocks its node stands for"
