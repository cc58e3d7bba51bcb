"""The prefix cache: KV blocks of finished and running prompts, found again by the tokens they hold.

A radix tree whose edges are whole blocks (the idea of Zheng et al., "SGLang: Efficient Execution of Structured
Language Model Programs", 2024, section 3, on pages of more than one token). It owns blocks and decides which
to give up first; it knows no sequences, no free list and no KV memory.

Tokens are kept packed (see ``pack_tokens``), so that comparing a long edge is one ``memcmp``, and two prefixes
are equal only where all their tokens are: hashes choose a dictionary slot and never decide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from headrace.cache.packed_tokens import TOKEN_BYTES
from headrace.cache.radix_node import PrefixMatch, RadixNode


class RadixTree:
    """Prefixes of every namespace; nothing is shared across namespaces. One thread only.

    Locked nodes stay. The others wait in ``_unlocked`` in the order in which they were unlocked. A parent is
    unlocked only after its children (they lock it), so the first in that order has no children: it is the
    least recently used leaf, found without a search, a heap or time stamps.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._roots: dict[str, RadixNode] = {}
        self._unlocked: OrderedDict[RadixNode, None] = OrderedDict()
        self._num_nodes = 0
        self._num_blocks = 0
        self._num_evictable_blocks = 0

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_nodes(self) -> int:
        """Nodes with blocks, so without the roots."""
        return self._num_nodes

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_evictable_blocks(self) -> int:
        return self._num_evictable_blocks

    @property
    def namespaces(self) -> list[str]:
        """Those with a prefix cached or in use."""
        return list(self._roots)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node, roots included, parents before children."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def eviction_order(self) -> Iterator[RadixNode]:
        """Every unlocked node, the first to go first."""
        return iter(self._unlocked)

    # -- finding and holding ------------------------------------------------------------------------

    def match(self, namespace: str, packed_tokens: bytes) -> PrefixMatch:
        """Longest cached prefix of the tokens in whole blocks; a last, partial block is not looked at.

        Changes nothing: a namespace seen for the first time gets its root when the match is locked.
        Cost: one dictionary look-up per node on the way and one comparison of the matched bytes.
        """
        root = self._roots.get(namespace)
        if root is None:
            return PrefixMatch(RadixNode(namespace, None), 0, [])
        if num_over := len(packed_tokens) % self._block_bytes:
            packed_tokens = packed_tokens[:-num_over]  # it could be the whole of an open leaf
        return self._match_below(root, packed_tokens)

    def lock(self, match: PrefixMatch) -> RadixNode:
        """Keep a fresh match from eviction until ``unlock`` of the node returned, which ends where it ends."""
        node = self._split(match)
        if node.parent is None:
            root = self._roots.setdefault(node.namespace, node)
            assert root is node, "the match is out of date"
        self._lock_node(node)
        return node

    def unlock(self, node: RadixNode) -> None:
        """Undo one ``lock``. A namespace nobody uses and with nothing cached disappears."""
        assert node.lock_count > 0
        node.lock_count -= 1
        while node.lock_count == 0 and node.parent is not None:
            self._unlocked[node] = None
            self._num_evictable_blocks += len(node.block_ids)
            node = node.parent
            node.lock_count -= 1
        self._drop_if_unused(node)

    def insert(self, node: RadixNode, packed_tokens: bytes, block_ids: list[int]) -> tuple[RadixNode, list[int]]:
        """Offer the blocks that follow a locked node, and move one lock from it to their end.

        Returns the node now locked and the blocks the tree holds for the tokens: an offered one that is not
        among them was there already, under another id, and remains the caller's. Cost: O(blocks offered).
        """
        assert len(packed_tokens) == len(block_ids) * self._block_bytes
        match = self._match_below(node, packed_tokens)
        num_known = len(match.block_ids)
        end = self._split(match)
        self._move_lock(node, end)
        if num_known < len(block_ids):
            end = self._append(end, packed_tokens[num_known * self._block_bytes :], block_ids[num_known:])
        return end, match.block_ids + block_ids[num_known:]

    def touch(self, node: RadixNode) -> None:
        """Note a use of a node whose parent is locked, so that it stays longer if it is not locked itself."""
        if node.lock_count == 0:
            self._unlocked.move_to_end(node)

    def add_open_leaf(self, node: RadixNode, packed_tokens: bytes, block_id: int) -> None:
        """Keep a block that is not full after a locked node. There must be none with the same tokens."""
        assert 0 < len(packed_tokens) < self._block_bytes
        assert packed_tokens not in node.children
        self._attach(node, packed_tokens, [block_id])

    # -- giving up ----------------------------------------------------------------------------------

    def evict(self, num_blocks: int) -> list[int]:
        """Forget up to ``num_blocks`` unlocked blocks and return their ids, which are the caller's now.

        Takes from the end of the least recently used leaf, then the next. Cost: O(blocks evicted).
        """
        evicted: list[int] = []
        while self._unlocked and len(evicted) < num_blocks:
            leaf = next(iter(self._unlocked))
            num_taken = min(num_blocks - len(evicted), len(leaf.block_ids))
            evicted += leaf.block_ids[-num_taken:]
            self._cut(leaf, num_taken)
        return evicted

    def drop_leaf(self, leaf: RadixNode) -> list[int]:
        """Forget an unlocked node without children; its blocks are the caller's now."""
        self._cut(leaf, len(leaf.block_ids))
        return leaf.block_ids

    def _cut(self, leaf: RadixNode, num_blocks: int) -> None:
        """Take the last blocks off an unlocked leaf, and the leaf off the tree when none remain."""
        self._num_blocks -= num_blocks
        self._num_evictable_blocks -= num_blocks
        if num_blocks == len(leaf.block_ids):
            self._remove(leaf)
        else:
            del leaf.block_ids[-num_blocks:]
            del leaf.packed_tokens[-num_blocks * self._block_bytes :]

    def _remove(self, leaf: RadixNode) -> None:
        assert leaf.parent is not None
        assert not leaf.children
        del self._unlocked[leaf]
        del leaf.parent.children[self._key(leaf.packed_tokens)]
        self._num_nodes -= 1
        self._drop_if_unused(leaf.parent)

    def _drop_if_unused(self, node: RadixNode) -> None:
        if node.parent is None and node.lock_count == 0 and not node.children:
            del self._roots[node.namespace]

    # -- walking and growing ------------------------------------------------------------------------

    def _match_below(self, node: RadixNode, packed_tokens: bytes) -> PrefixMatch:
        block_bytes, start = self._block_bytes, 0
        block_ids: list[int] = []
        while (child := node.children.get(packed_tokens[start : start + block_bytes])) is not None:
            if not packed_tokens.startswith(child.packed_tokens, start):
                num_common = child.num_common_blocks(packed_tokens, start, block_bytes)
                return PrefixMatch(child, num_common, block_ids + child.block_ids[:num_common])
            block_ids += child.block_ids
            start += len(child.packed_tokens)
            node = child
        return PrefixMatch(node, len(node.block_ids), block_ids)

    def _split(self, match: PrefixMatch) -> RadixNode:
        """The node that ends where the match ends, cut out of the one it ends in if need be.

        The lower part stays the same object, since holders have its end locked. The upper part of an unlocked
        node is for the caller to lock at once: until then it is out of order, after its own parent.
        """
        lower = match.node
        if match.ends_with_node:
            return lower
        parent, num_bytes = lower.parent, match.num_node_blocks * self._block_bytes
        assert parent is not None
        upper = RadixNode(
            lower.namespace, parent, lower.packed_tokens[:num_bytes], lower.block_ids[: match.num_node_blocks]
        )
        del lower.packed_tokens[:num_bytes]
        del lower.block_ids[: match.num_node_blocks]
        upper.children[self._key(lower.packed_tokens)] = lower
        lower.parent = upper
        parent.children[self._key(upper.packed_tokens)] = upper
        self._num_nodes += 1
        if lower.lock_count > 0:
            upper.lock_count = 1
        else:
            self._unlocked[upper] = None
        return upper

    def _append(self, node: RadixNode, packed_tokens: bytes, block_ids: list[int]) -> RadixNode:
        """Add new blocks after a locked node and move one lock from it to their end."""
        if node.parent is not None and node.lock_count == 1 and not node.children:
            # Nobody but the caller ends here, so the node may grow: a sequence makes one node, not one per block.
            self._num_blocks += len(block_ids)
            node.packed_tokens += packed_tokens
            node.block_ids += block_ids
            return node
        child = self._attach(node, packed_tokens, block_ids)
        self._move_lock(node, child)
        return child

    def _attach(self, node: RadixNode, packed_tokens: bytes, block_ids: list[int]) -> RadixNode:
        """Add an unlocked child after a locked node."""
        child = RadixNode(node.namespace, node, packed_tokens, block_ids)
        node.children[self._key(packed_tokens)] = child
        self._num_nodes += 1
        self._num_blocks += len(block_ids)
        self._num_evictable_blocks += len(block_ids)
        self._unlocked[child] = None
        return child

    def _key(self, packed_tokens: bytes | bytearray) -> bytes:
        return bytes(packed_tokens[: self._block_bytes])

    # -- locks --------------------------------------------------------------------------------------

    def _lock_node(self, node: RadixNode) -> None:
        node.lock_count += 1
        while node.lock_count == 1 and node.parent is not None:
            del self._unlocked[node]
            self._num_evictable_blocks -= len(node.block_ids)
            node = node.parent
            node.lock_count += 1

    def _move_lock(self, node: RadixNode, descendant: RadixNode) -> None:
        """Cost: O(nodes between the two), as the ones above stay locked throughout."""
        self._lock_node(descendant)
        self.unlock(node)

    def rebuild(self, held_nodes: Iterable[RadixNode]) -> None:
        """Recount locks and totals from the nodes there are and those that holders have locked.

        For repair: the order of use is forgotten. Cost: O(all nodes).
        """
        nodes = list(self.nodes())
        for node in nodes:
            node.lock_count = 0
        cached = [node for node in nodes if node.parent is not None]
        self._unlocked = OrderedDict.fromkeys(reversed(cached))  # children before parents
        self._num_nodes = len(cached)
        self._num_blocks = self._num_evictable_blocks = sum(len(node.block_ids) for node in cached)
        for node in held_nodes:
            self._lock_node(node)
        for root in list(self._roots.values()):
            self._drop_if_unused(root)
