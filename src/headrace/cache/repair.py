"""How the books of the KV cache are made right again after ``integrity`` found fault with them.

A cache with broken links is dropped whole, and one with a block that has two owners where it is not locked. Each
function mends one part and says in words what it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from headrace.cache import integrity
from headrace.cache.block_pool import BlockPool
from headrace.cache.prefix_cache import PrefixCache
from headrace.cache.radix_node import RadixNode
from headrace.cache.radix_tree import RadixTree
from headrace.core.sequence import Sequence


def mend(
    pool: BlockPool, prefixes: PrefixCache, holders: Collection[Sequence], live: Mapping[int, Sequence]
) -> list[str]:
    """Leave ``live`` what they hold, as far as it is theirs, take the rest from ``holders``, and recount everything."""
    prefixes.tree, mended = _mended_tree(prefixes.tree)
    repairs = [mended, *_dispossess(holders, live, prefixes.tree)]
    for seq in holders:
        if seq.prefix_node is None:
            prefixes.in_flight.discard(seq.seq_id)
            prefixes.open_blocks.leave(seq)
    prefixes.tree.rebuild(seq.prefix_node for seq in live.values() if isinstance(seq.prefix_node, RadixNode))
    return repairs + _conserve_blocks(pool, prefixes.tree, live.values())


def _mended_tree(tree: RadixTree) -> tuple[RadixTree, str]:
    """The tree, or an empty one if its links are broken; its locks and totals are for the caller to recount."""
    if list(integrity.link_violations(tree)):
        return RadixTree(tree.block_size), "dropped the prefix cache, as its links were broken"
    return tree, f"recounted the locks and totals of {tree.num_nodes} cached nodes"


def _dispossess(holders: Collection[Sequence], live: Mapping[int, Sequence], tree: RadixTree) -> list[str]:
    """Leave only ``live`` sequences anything, and each of them a prefix that is cached or none."""
    repairs = []
    cached_nodes = set(tree.nodes())
    for seq in holders:
        if seq.seq_id not in live:
            repairs.append(f"took {len(seq.block_table)} blocks from {seq}, which is not live")
            seq.block_table.clear()
        elif seq.prefix_node is not None and seq.prefix_node not in cached_nodes:
            repairs.append(f"left {seq} its blocks as its own, since its prefix is not cached")
        else:
            continue
        seq.prefix_node = None
        seq.num_shared_blocks = 0
    return repairs


def _conserve_blocks(pool: BlockPool, tree: RadixTree, holders: Collection[Sequence]) -> list[str]:
    """Make the free list what nobody owns.

    A block with two owners is taken out of the cache where it is not locked; one that two sequences claim is left to
    both, and ``integrity`` names it until one of them ends.
    """
    repairs = []
    owners = Counter(integrity.owned_block_ids(tree, holders))
    if contested := sorted(block_id for block_id, count in owners.items() if count > 1):
        dropped = tree.evict(tree.num_evictable_blocks)
        owners.subtract(dropped)
        repairs.append(f"dropped {len(dropped)} cached blocks, as blocks {contested} had more than one owner")
    return repairs + pool.rebuild({block_id for block_id, count in owners.items() if count > 0})
