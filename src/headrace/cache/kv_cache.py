"""Who owns which KV block: the scheduler's one door to the pool, the prefix cache and the tiers below.

Every block has exactly one owner at any time: the free list, one sequence, or one node of the radix tree.
``extend`` takes blocks from the free list, ``commit`` moves full ones from the sequence to the tree,
``release`` gives up the rest, eviction returns the tree's to the free list. Sequences share blocks only by
locking a node of the tree, so there are no reference counts on blocks. Of a block that it could share only in part a
sequence gets a copy, or has the beginning written to its own while that is computed for another.

Handles block ids alone. It does not know what is in them, when a sequence runs, or who gives way when
memory is short; where content has to move, it orders copies (``take_transfers``) that go down with the next plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cache import integrity, repair
from headrace.cache.block_pool import BlockPool
from headrace.cache.growth import BlockGrowth
from headrace.cache.joints import Joints
from headrace.cache.lookups import LookupMeter, PrefixCacheStats
from headrace.cache.open_blocks import NO_CHUNKS, Chunks
from headrace.cache.prefix_cache import PrefixCache
from headrace.cache.radix_node import RadixNode
from headrace.cache.swap import SwapSpace
from headrace.cache.tiers import BlockTiers
from headrace.core.sequence import Sequence
from headrace.core.step import BlockTransfer


class KVCacheManager:
    """Gives sequences their KV blocks. One thread only.

    A sequence is admitted with ``acquire``, gets room with ``extend`` before each step, hands its full blocks
    over with ``commit`` after it, and leaves with ``release`` (preempted, perhaps after ``swap_out``) or ``discard``
    (for good). Its fields ``block_table``, ``prefix_node`` and ``num_shared_blocks`` are written in this package and
    nowhere else. Without prefix caching a sequence's blocks simply stay its own: ``prefix_node`` is None throughout.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool, tiers: BlockTiers | None = None
    ) -> None:
        self._block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._pool = BlockPool(num_blocks)
        self._tiers = BlockTiers() if tiers is None else tiers
        self._growth = BlockGrowth(self._pool, self._tiers.host)
        self._swap = SwapSpace(self._tiers, block_size)
        self._prefixes = PrefixCache(block_size, self._tiers)
        self._holders: dict[int, Sequence] = {}
        self._lookups = LookupMeter(block_size)

    @property
    def stats(self) -> PrefixCacheStats:
        return self._lookups.stats

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
        return self._prefixes.tree.num_blocks

    @property
    def num_evictable_blocks(self) -> int:
        """Cached blocks that no sequence has locked."""
        return self._prefixes.tree.num_evictable_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks ``extend`` can hand out now: free or evictable."""
        return self._pool.num_free + self._prefixes.tree.num_evictable_blocks

    @property
    def num_private_blocks(self) -> int:
        """Blocks owned by sequences."""
        return self._pool.num_blocks - self._pool.num_free - self._prefixes.tree.num_blocks

    @property
    def growth(self) -> BlockGrowth:
        """What blocks may still take of the machine's memory."""
        return self._growth

    def fits(self, num_tokens: int) -> bool:
        """Whether one sequence of so many tokens fits the pool when it has it all to itself."""
        return _num_covering_blocks(num_tokens, self._block_size) <= self._pool.num_blocks

    # -- a sequence's life --------------------------------------------------------------------------

    def acquire(self, seq: Sequence, limit: int, chunks: Chunks = NO_CHUNKS) -> None:
        """Admit a sequence that holds nothing, with what there is of its first ``limit`` tokens.

        Sets ``num_computed_tokens`` to the tokens found: cached whole blocks, here or in the host tier, what was
        swapped out for this sequence, or the beginning of a block that is copied or joined to ``chunks``, those of the
        plan being made. A ``limit`` below the number of tokens leaves something to compute; 0 takes nothing from the
        cache. ``extend`` or ``release`` comes next: nobody keeps longer what is to be copied. Cost: O(tokens found).
        """
        assert seq.seq_id not in self._holders, f"{seq} was acquired before"
        assert 0 <= limit <= seq.num_tokens
        self._holders[seq.seq_id] = seq
        num_blocks = limit // self._block_size if self._enable_prefix_caching else 0
        if self._enable_prefix_caching:
            self._prefixes.lock(seq, num_blocks)
        seq.num_computed_tokens = seq.num_shared_blocks * self._block_size
        if not self._tiers.is_off:
            seq.num_computed_tokens = self._swap.plan(
                seq.seq_id,
                seq.num_shared_blocks,
                self._prefixes.key_before(seq),
                self._prefixes.packed_blocks(seq, seq.num_shared_blocks, num_blocks),
                limit,
            )
        if self._enable_prefix_caching:
            num_begun = self._prefixes.plan_beginning(seq, limit, chunks)
            seq.num_computed_tokens += num_begun
            self._lookups.note(seq, limit, num_begun)

    def num_cached_tokens(self, seq: Sequence, limit: int) -> int:
        """How many of a waiting sequence's first ``limit`` tokens ``acquire`` would find now. Cost: O(tokens found)."""
        num_blocks = limit // self._block_size if self._enable_prefix_caching else 0
        num_cached, key, missing = self._prefixes.look_up(seq, num_blocks)
        num_below = 0 if self._tiers.is_off else self._swap.num_found(key, missing)
        return (num_cached + num_below) * self._block_size

    def can_extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether ``extend`` would succeed."""
        return self._num_missing_blocks(seq, num_tokens) <= self.num_available_blocks

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` more computed tokens, evicting cached blocks if it takes that.

        Returns False, and changes nothing, if there are too few blocks. Cost: O(blocks added).
        """
        if seq.num_computed_tokens + num_tokens <= len(seq.block_table) * self._block_size:
            return True
        num_missing = self._num_missing_blocks(seq, num_tokens)
        assert seq.seq_id in self._holders, f"{seq} was not acquired"
        if num_missing > self.num_available_blocks:
            return False
        self._make_free(num_missing)
        seq.block_table.extend(self._pool.allocate(num_missing))
        self._prefixes.order_copy(seq)
        self._swap.bring_back(seq.seq_id, seq.block_table.ids)
        self._lookups.count(seq)
        return True

    def commit(self, seq: Sequence) -> None:
        """Hand blocks that have become full to the prefix cache, after ``num_computed_tokens`` advanced.

        Where it holds the same tokens already, the sequence adopts those blocks and frees its own. Cost: O(blocks).
        """
        if seq.num_computed_tokens < (seq.num_shared_blocks + 1) * self._block_size:
            return
        node = _prefix_node(seq)
        if node is not None:
            self._pool.free(self._prefixes.commit(seq, node))

    def swap_out(self, seq: Sequence) -> bool:
        """Keep what a sequence computed in blocks of its own in the host tier, for when it is acquired again.

        To be called before ``release``, with nothing more computed between. What it shares stays cached anyway.
        Returns False if the host tier has no room for it, or if it was still to join what it begins with.
        """
        if self.joints.of(seq):
            return False
        num_used = _num_covering_blocks(seq.num_computed_tokens, self._block_size)
        block_ids = seq.block_table.ids[seq.num_shared_blocks : num_used].tolist()
        return self._swap.store(seq.seq_id, seq.num_shared_blocks, block_ids, seq.num_computed_tokens)

    def release(self, seq: Sequence) -> None:
        """Take everything back from a sequence; what it committed stays cached. No effect if it holds nothing.

        ``num_computed_tokens`` is left for the caller to reset.
        """
        if self._holders.pop(seq.seq_id, None) is None:
            return
        self._swap.call_off(seq.seq_id)
        self._pool.free(self._prefixes.release(seq))
        self._lookups.forget(seq.seq_id)
        seq.block_table.clear()

    def discard(self, seq: Sequence) -> None:
        """Release a sequence for good: what was swapped out for it is dropped, too."""
        self.release(seq)
        self._swap.drop(seq.seq_id)

    def is_being_computed(self, seq: Sequence, limit: int, chunks: Chunks = NO_CHUNKS) -> bool:
        """See ``PrefixCache.is_being_computed``."""
        return self._prefixes.is_being_computed(seq, limit, chunks)

    def fetch(self, seq: Sequence, limit: int) -> bool:
        """Begin to bring from disk what a waiting sequence could use of its first ``limit`` tokens.

        Returns whether something is on its way to the host tier; it can be acquired after the next plan. That is never
        so for ever: a sequence has only so much fetched for it. Cost: as ``acquire``, nothing without a disk tier.
        """
        if not (self._tiers.has_disk and self._enable_prefix_caching):
            return False
        _, key, missing = self._prefixes.look_up(seq, limit // self._block_size)
        return self._swap.fetch(seq.seq_id, key, missing)

    def clear_prefix_cache(self) -> None:
        """Forget every cached block that no sequence has locked, in the pool and below it."""
        self._pool.free(self._prefixes.tree.evict(self.num_evictable_blocks))
        self._tiers.forget_contents()

    # -- copies between the tiers -------------------------------------------------------------------

    @property
    def tiers(self) -> BlockTiers:
        """The tiers below the pool, for whoever reports on them."""
        return self._tiers

    @property
    def joints(self) -> Joints:
        """What the plan being made computes for more than one sequence."""
        return self._prefixes.open_blocks.joints

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """The copies that the plan being made must carry; ``settle`` or ``abandon`` says what became of them."""
        return self._tiers.take_transfers()

    def settle(self, failed: Iterable[BlockTransfer]) -> None:
        """The plan was executed, but for fetches that failed."""
        self._prefixes.open_blocks.settle()
        self._tiers.settle(failed)
        self._swap.settle()

    def abandon(self) -> list[Sequence]:
        """The plan was not executed; which sequences have fewer computed tokens now, as there was nothing to join.

        Where blocks were to be moved, too, the sequences in the plan must be released.
        """
        self._tiers.abandon()
        self._swap.abandon()
        return self._prefixes.open_blocks.abandon()

    def _num_missing_blocks(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks the table lacks to hold so many tokens after the computed ones; negative if it has some to spare."""
        return _num_covering_blocks(seq.num_computed_tokens + num_tokens, self._block_size) - len(seq.block_table)

    def _make_free(self, num_blocks: int) -> None:
        num_short = min(num_blocks - self._pool.num_ready, self.num_evictable_blocks)
        if num_short > 0:
            self._pool.free(self._prefixes.evict(num_short))
            self.stats.evicted_blocks += num_short

    # -- check and repair -----------------------------------------------------------------------------

    def check(self) -> list[str]:
        """What is wrong with the books, in words; empty when every block has exactly one owner.

        Cost: O(blocks), so for tests and idle moments.
        """
        found = integrity.violations(self._pool, self._prefixes.tree, list(self._holders.values()))
        return found + self._tiers.violations(self._swap.held_slots)

    def heal(self, live_sequences: Iterable[Sequence]) -> list[str]:
        """Make the books right after ``check`` found fault, and say what was done: see ``repair``.

        Of the sequences that were acquired only ``live_sequences`` keep what they hold. The tiers below are emptied:
        they hold nothing that cannot be computed again.
        """
        live = {seq.seq_id: seq for seq in live_sequences if seq.seq_id in self._holders}
        repairs = repair.mend(self._pool, self._prefixes, list(self._holders.values()), live)
        for seq_id in self._holders.keys() - live.keys():
            self._lookups.forget(seq_id)
        self._holders = live
        self._tiers.clear()
        self._swap.clear()
        return repairs


def _prefix_node(seq: Sequence) -> RadixNode | None:
    node = seq.prefix_node
    assert node is None or isinstance(node, RadixNode)
    return node


def _num_covering_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
