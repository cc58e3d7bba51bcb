"""The prefix cache as sequences see it: what it has of their tokens, what they add to it, what is coming.

Joins the radix tree, the blocks in flight, those that can be copied and the names by which the tiers below know
content. It writes a sequence's ``prefix_node``, ``num_shared_blocks`` and the shared part of its block table; who owns
free and private blocks is ``KVCacheManager``'s business.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cache.in_flight import InFlightBlocks
from headrace.cache.open_blocks import Chunks, OpenBlocks
from headrace.cache.packed_tokens import pack_tokens
from headrace.cache.radix_node import PrefixMatch, RadixNode
from headrace.cache.radix_tree import RadixTree
from headrace.cache.tiers import BlockKey, BlockTiers, namespace_key
from headrace.core.sequence import Sequence

_FIRST_MATCH_BLOCKS = 64
_MATCH_GROWTH = 8


class PrefixCache:
    """Locks, extends and evicts prefixes for sequences. One thread only."""

    def __init__(self, block_size: int, tiers: BlockTiers) -> None:
        self.tree = RadixTree(block_size)
        self.in_flight = InFlightBlocks()
        self.open_blocks = OpenBlocks(block_size)
        self._block_size = block_size
        self._tiers = tiers

    def match(self, seq: Sequence, num_blocks: int) -> PrefixMatch:
        """What the cache has of the first ``num_blocks`` blocks of a sequence.

        Packing a long prompt costs more than matching it, so a short piece is packed at first, and a longer one
        only if that matched to its end.
        """
        num_packed = min(_FIRST_MATCH_BLOCKS, num_blocks)
        while True:
            packed = pack_tokens(seq.token_ids[: num_packed * self._block_size])
            match = self.tree.match(seq.request.cache_salt, packed)
            if len(match.block_ids) < num_packed or num_packed == num_blocks:
                return match
            num_packed = min(num_packed * _MATCH_GROWTH, num_blocks)

    def lock(self, seq: Sequence, num_blocks: int) -> None:
        """Give a sequence that holds nothing what the cache has of its first ``num_blocks`` blocks."""
        match = self.match(seq, num_blocks)
        seq.prefix_node = self.tree.lock(match)
        seq.num_shared_blocks = len(match.block_ids)
        seq.block_table.extend(match.block_ids)
        self._announce_next_block(seq)
        self.open_blocks.enter(seq)

    def commit(self, seq: Sequence, node: RadixNode) -> list[int]:
        """Take over the full private blocks of a sequence that ends at ``node``.

        Where the cache holds the same tokens already, the sequence adopts those blocks; returns the ones it had, which
        are nobody's now.
        """
        start, end = seq.num_shared_blocks, seq.num_computed_tokens // self._block_size
        own_ids = seq.block_table.ids[start:end].tolist()
        packed = pack_tokens(seq.token_ids[start * self._block_size : end * self._block_size])
        before = self.key_before(seq)
        seq.prefix_node, cached_ids = self.tree.insert(node, packed, own_ids)
        if not self._tiers.is_off:
            self._tiers.name_blocks(cached_ids, before, self.packed_blocks(seq, start, end))
        seq.num_shared_blocks = end
        self.in_flight.discard(seq.seq_id)
        self._announce_next_block(seq)
        self.open_blocks.move(seq)
        if cached_ids == own_ids:
            return []
        seq.block_table.replace(start, cached_ids)
        return [own for own, cached in zip(own_ids, cached_ids, strict=True) if own != cached]

    def plan_beginning(self, seq: Sequence, limit: int, chunks: Chunks) -> int:
        """Choose how a sequence just admitted gets the beginning of a block; how many tokens that are.

        They are copied, or joined to the chunks of others, by the plan in which the sequence gets room, or not at all.
        """
        return self.open_blocks.plan(seq, self.tree, limit, chunks)

    def order_copy(self, seq: Sequence) -> None:
        """Let the next plan make the copy that was planned, if one was, into the first block of the sequence's own."""
        source = self.open_blocks.take_copy(seq)
        if source is not None:
            self._tiers.copy(source, int(seq.block_table.ids[seq.num_shared_blocks]))

    def evict(self, num_blocks: int) -> list[int]:
        """Give up the least recently used blocks, which the tiers below keep as far as they have room."""
        block_ids = self.tree.evict(num_blocks)
        self._tiers.keep(block_ids)
        return block_ids

    def is_being_computed(self, seq: Sequence, limit: int, chunks: Chunks) -> bool:
        """Whether the block a waiting sequence would compute first is the next one of an admitted sequence.

        If so, waiting for that one's ``commit`` saves computing the block twice. Only blocks that ``lock`` could then
        find are considered: those within the first ``limit`` tokens. Where that is the last of them and as much as half
        of it can be copied or joined now, there is too little to wait for. Cost: O(tokens cached of the sequence).
        """
        if not self.in_flight:
            return False
        num_blocks = limit // self._block_size
        match = self.match(seq, num_blocks)
        num_matched = len(match.block_ids)
        if num_matched == num_blocks or not match.ends_with_node:
            return False
        if (match.node, self._packed_block(seq, num_matched)) not in self.in_flight:
            return False
        if num_matched + 1 < num_blocks:
            return True
        return 2 * self.open_blocks.num_to_be_had(seq, match.node, num_matched, limit, chunks) < self._block_size

    def release(self, seq: Sequence) -> list[int]:
        """Take back what a sequence shares, keeping what it computed; the blocks of its own that are nobody's now."""
        unused_ids = seq.private_block_ids
        node = seq.prefix_node
        if isinstance(node, RadixNode):
            self._tiers.unname(unused_ids[:1])  # the one that may be kept; a cache that was cleared leaves names behind
            unused_ids = self.open_blocks.leave_block(seq, self.tree)
            self.tree.unlock(node)
        self.in_flight.discard(seq.seq_id)
        self.open_blocks.leave(seq)
        seq.prefix_node = None
        seq.num_shared_blocks = 0
        return unused_ids

    # -- names for the tiers below ------------------------------------------------------------------

    def key_before(self, seq: Sequence) -> BlockKey:
        """The name of what an admitted sequence shares."""
        return self._key_after(seq.request.cache_salt, seq.block_table.ids[: seq.num_shared_blocks].tolist())

    def look_up(self, seq: Sequence, num_blocks: int) -> tuple[int, BlockKey, Iterator[bytes]]:
        """How many of a sequence's first blocks are cached, the name of these, and the tokens of those that are not."""
        block_ids = self.match(seq, num_blocks).block_ids
        key = self._key_after(seq.request.cache_salt, block_ids)
        return len(block_ids), key, self.packed_blocks(seq, len(block_ids), num_blocks)

    def packed_blocks(self, seq: Sequence, start: int, end: int) -> Iterator[bytes]:
        """The tokens of blocks ``[start, end)``, packed when they are asked for."""
        return (self._packed_block(seq, index) for index in range(start, end))

    def _key_after(self, namespace: str, block_ids: list[int]) -> BlockKey:
        if self._tiers.is_off or not block_ids:
            return namespace_key(namespace)
        return self._tiers.key_of(block_ids[-1])

    def _packed_block(self, seq: Sequence, index: int) -> bytes:
        start = index * self._block_size
        return pack_tokens(seq.token_ids[start : start + self._block_size])

    def _announce_next_block(self, seq: Sequence) -> None:
        if seq.is_guess:
            return  # nobody is to wait for what may be called off
        if seq.prefix_node is not None and seq.num_tokens >= (seq.num_shared_blocks + 1) * self._block_size:
            self.in_flight.add(seq.seq_id, seq.prefix_node, self._packed_block(seq, seq.num_shared_blocks))
