"""Who owns which KV block: the scheduler's one door to the pool and the prefix cache.

Every block has exactly one owner at any time: the free list, one sequence, or one node of the radix tree.
``extend`` takes blocks from the free list, ``commit`` moves full ones from the sequence to the tree,
``release`` gives up the rest, eviction returns the tree's to the free list. Sequences share blocks only by
locking a node of the tree, so there are no reference counts on blocks.

Handles block ids alone. It does not know what is in them, when a sequence runs, or who gives way when
memory is short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cache import integrity
from headrace.cache.block_pool import BlockPool
from headrace.cache.in_flight import InFlightBlocks
from headrace.cache.radix_tree import PrefixMatch, RadixNode, RadixTree, pack_tokens
from headrace.core.sequence import Sequence

_FIRST_MATCH_BLOCKS = 64
_MATCH_GROWTH = 8


@dataclass(slots=True)
class PrefixCacheStats:
    """Counts that only grow: tokens looked up, those of them found, blocks evicted for want of room."""

    query_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0


class KVCacheManager:
    """Gives sequences their KV blocks. One thread only.

    A sequence is admitted with ``acquire``, gets room with ``extend`` before each step, hands its full blocks
    over with ``commit`` after it, and leaves (for good or preempted) with ``release``. Its fields
    ``block_table``, ``prefix_node`` and ``num_shared_blocks`` are written here and nowhere else. Without
    prefix caching a sequence's blocks simply stay its own: ``prefix_node`` is None throughout.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self._block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(block_size)
        self._in_flight = InFlightBlocks()
        self._holders: dict[int, Sequence] = {}
        self._uncounted_queries: dict[int, int] = {}
        self.stats = PrefixCacheStats()

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        return self._tree.num_blocks

    @property
    def num_evictable_blocks(self) -> int:
        """Cached blocks that no sequence has locked."""
        return self._tree.num_evictable_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks ``extend`` can hand out now: free or evictable."""
        return self._pool.num_free + self._tree.num_evictable_blocks

    @property
    def num_private_blocks(self) -> int:
        """Blocks owned by sequences."""
        return self._pool.num_blocks - self._pool.num_free - self._tree.num_blocks

    def fits(self, num_tokens: int) -> bool:
        """Whether one sequence of so many tokens fits the pool when it has it all to itself."""
        return _num_covering_blocks(num_tokens, self._block_size) <= self._pool.num_blocks

    # -- a sequence's life --------------------------------------------------------------------------

    def acquire(self, seq: Sequence, limit: int) -> None:
        """Admit a sequence that holds nothing, with what the cache has of its first ``limit`` tokens.

        Sets ``num_computed_tokens`` to the tokens found, whole blocks of them. A ``limit`` below the number of
        tokens leaves something to compute; 0 takes nothing from the cache. Cost: O(tokens found).
        """
        assert seq.seq_id not in self._holders, f"{seq} was acquired before"
        assert 0 <= limit <= seq.num_tokens
        self._holders[seq.seq_id] = seq
        seq.num_computed_tokens = 0
        if not self._enable_prefix_caching:
            return
        match = self._match(seq, limit // self._block_size)
        seq.prefix_node = self._tree.lock(match)
        seq.num_shared_blocks = len(match.block_ids)
        seq.block_table.extend(match.block_ids)
        seq.num_computed_tokens = seq.num_shared_blocks * self._block_size
        self._uncounted_queries[seq.seq_id] = limit
        self._announce_next_block(seq)

    def num_cached_tokens(self, seq: Sequence, limit: int) -> int:
        """How many of its first ``limit`` tokens ``acquire`` would find now. Cost: O(tokens found)."""
        return len(self._match(seq, limit // self._block_size).block_ids) * self._block_size

    def can_extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether ``extend`` would succeed."""
        return self._num_missing_blocks(seq, num_tokens) <= self.num_available_blocks

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` more computed tokens, evicting cached blocks if it takes that.

        Returns False, and changes nothing, if there are too few blocks. Cost: O(blocks added).
        """
        num_missing = self._num_missing_blocks(seq, num_tokens)
        if num_missing <= 0:
            return True
        assert seq.seq_id in self._holders, f"{seq} was not acquired"
        if num_missing > self.num_available_blocks:
            return False
        self._make_free(num_missing)
        seq.block_table.extend(self._pool.allocate(num_missing))
        self._count_query(seq)
        return True

    def commit(self, seq: Sequence) -> None:
        """Hand blocks that have become full to the prefix cache, after ``num_computed_tokens`` advanced.

        Where the cache holds the same tokens already, the sequence adopts those blocks and frees its own.
        Cost: O(blocks handed over), a comparison or two when there are none.
        """
        if seq.num_computed_tokens < (seq.num_shared_blocks + 1) * self._block_size:
            return
        node = _prefix_node(seq)
        if node is not None:
            self._commit_full_blocks(seq, node)

    def release(self, seq: Sequence) -> None:
        """Take everything back from a sequence; what it committed stays cached. No effect if it holds nothing.

        ``num_computed_tokens`` is left for the caller to reset.
        """
        if self._holders.pop(seq.seq_id, None) is None:
            return
        self._pool.free(seq.private_block_ids)
        node = _prefix_node(seq)
        if node is not None:
            self._tree.unlock(node)
        self._forget(seq)

    def is_being_computed(self, seq: Sequence) -> bool:
        """Whether the block a waiting sequence would compute first is the next one of an admitted sequence.

        If so, waiting for that one's ``commit`` saves computing the block twice. Only blocks that ``acquire``
        could then find are considered: at least one token of the sequence comes after them.
        Cost: O(tokens the cache holds of the sequence).
        """
        if not self._in_flight:
            return False
        limit = (seq.num_tokens - 1) // self._block_size
        match = self._match(seq, limit)
        index = len(match.block_ids)
        if index == limit or not match.ends_with_node:
            return False
        return (match.node, _packed_block(seq, index, self._block_size)) in self._in_flight

    def clear_prefix_cache(self) -> None:
        """Forget every cached block that no sequence has locked."""
        self._pool.free(self._tree.evict(self._tree.num_evictable_blocks))

    def _num_missing_blocks(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks the table lacks to hold so many tokens after the computed ones; negative if it has some to spare."""
        return _num_covering_blocks(seq.num_computed_tokens + num_tokens, self._block_size) - len(seq.block_table)

    def _match(self, seq: Sequence, num_blocks: int) -> PrefixMatch:
        """What the cache has of the first ``num_blocks`` blocks of a sequence.

        Packing a long prompt costs more than matching it, so a short piece is packed at first, and a longer one
        only if that matched to its end.
        """
        num_packed = min(_FIRST_MATCH_BLOCKS, num_blocks)
        while True:
            packed = pack_tokens(seq.token_ids[: num_packed * self._block_size])
            match = self._tree.match(seq.request.cache_salt, packed)
            if len(match.block_ids) < num_packed or num_packed == num_blocks:
                return match
            num_packed = min(num_packed * _MATCH_GROWTH, num_blocks)

    def _make_free(self, num_blocks: int) -> None:
        num_short = num_blocks - self._pool.num_free
        if num_short > 0:
            self._pool.free(self._tree.evict(num_short))
            self.stats.evicted_blocks += num_short

    def _count_query(self, seq: Sequence) -> None:
        # once the sequence gets room: one too large for now is looked up time and again, which says nothing
        limit = self._uncounted_queries.pop(seq.seq_id, None)
        if limit is not None:
            self.stats.query_tokens += limit
            self.stats.hit_tokens += seq.num_shared_blocks * self._block_size

    def _commit_full_blocks(self, seq: Sequence, node: RadixNode) -> None:
        start, end = seq.num_shared_blocks, seq.num_computed_tokens // self._block_size
        own_ids = seq.block_table.ids[start:end].tolist()
        packed = pack_tokens(seq.token_ids[start * self._block_size : end * self._block_size])
        seq.prefix_node, cached_ids = self._tree.insert(node, packed, own_ids)
        seq.num_shared_blocks = end
        if cached_ids != own_ids:
            seq.block_table.replace(start, cached_ids)
            self._pool.free([own for own, cached in zip(own_ids, cached_ids, strict=True) if own != cached])
        self._in_flight.discard(seq.seq_id)
        self._announce_next_block(seq)

    def _announce_next_block(self, seq: Sequence) -> None:
        if seq.prefix_node is not None and seq.num_tokens >= (seq.num_shared_blocks + 1) * self._block_size:
            self._in_flight.add(
                seq.seq_id, seq.prefix_node, _packed_block(seq, seq.num_shared_blocks, self._block_size)
            )

    def _forget(self, seq: Sequence) -> None:
        self._in_flight.discard(seq.seq_id)
        self._uncounted_queries.pop(seq.seq_id, None)
        seq.block_table.clear()
        seq.prefix_node = None
        seq.num_shared_blocks = 0

    # -- check and repair -----------------------------------------------------------------------------

    def check(self) -> list[str]:
        """What is wrong with the books, in words; empty when every block has exactly one owner.

        Cost: O(blocks), so for tests and idle moments.
        """
        return integrity.violations(self._pool, self._tree, list(self._holders.values()))

    def heal(self, live_sequences: Iterable[Sequence]) -> list[str]:
        """Make the books right after ``check`` found fault, and say what was done.

        Of the sequences that were acquired only ``live_sequences`` keep what they hold. A cache with broken
        links is dropped whole, and one with a block that has two owners where it is not locked. A block that
        two live sequences both claim is left to both: ``check`` names it until one of them ends.
        """
        live = {seq.seq_id: seq for seq in live_sequences if seq.seq_id in self._holders}
        repairs = self._mend_tree() + self._dispossess(live)
        self._tree.rebuild(node for seq in live.values() if (node := _prefix_node(seq)) is not None)
        owners = Counter(integrity.owned_block_ids(self._tree, live.values()))
        if contested := sorted(block_id for block_id, count in owners.items() if count > 1):
            dropped = self._tree.evict(self._tree.num_evictable_blocks)
            owners.subtract(dropped)
            repairs.append(f"dropped {len(dropped)} cached blocks, as blocks {contested} had more than one owner")
        return repairs + self._pool.rebuild({block_id for block_id, count in owners.items() if count > 0})

    def _mend_tree(self) -> list[str]:
        if list(integrity.link_violations(self._tree)):
            self._tree = RadixTree(self._block_size)
            return ["dropped the prefix cache, as its links were broken"]
        return [f"recounted the locks and totals of {self._tree.num_nodes} cached nodes"]

    def _dispossess(self, live: dict[int, Sequence]) -> list[str]:
        """Make ``live`` the only holders, each with a prefix that is cached or none."""
        repairs = []
        cached_nodes = set(self._tree.nodes())
        for seq in self._holders.values():
            if seq.seq_id not in live:
                repairs.append(f"took {len(seq.block_table)} blocks from {seq}, which is not live")
                self._forget(seq)
            elif seq.prefix_node is not None and seq.prefix_node not in cached_nodes:
                repairs.append(f"left {seq} its blocks as its own, since its prefix is not cached")
                self._in_flight.discard(seq.seq_id)
                seq.prefix_node = None
                seq.num_shared_blocks = 0
        self._holders = live
        return repairs


def _prefix_node(seq: Sequence) -> RadixNode | None:
    node = seq.prefix_node
    assert node is None or isinstance(node, RadixNode)
    return node


def _num_covering_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _packed_block(seq: Sequence, index: int, block_size: int) -> bytes:
    return pack_tokens(seq.token_ids[index * block_size : (index + 1) * block_size])
