"""The free list: which KV block ids nobody owns.

Knows nothing of sequences, tokens or the prefix cache; who holds an allocated block is the holder's business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class BlockPool:
    """Hands out the block ids ``[0, num_blocks)``.

    The block freed last is handed out first: it is the likeliest to be warm in some processor cache.
    Which ids come out is a function of the calls made, so that a run can be replayed.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self._num_blocks = num_blocks
        self._free_ids = list(reversed(range(num_blocks)))
        self._is_free = bytearray(b"\x01") * num_blocks
        self._num_untouched = num_blocks
        self._may_grow = True

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free_ids)

    @property
    def num_untouched(self) -> int:
        """Free blocks that were never handed out, whose memory therefore was never taken. They go last."""
        return self._num_untouched

    @property
    def num_ready(self) -> int:
        """Free blocks to use before others are made free: all of them, or those whose memory was taken already."""
        return self.num_free if self._may_grow else self.num_free - self._num_untouched

    def stop_growing(self) -> None:
        """From now on count untouched blocks as a last resort."""
        self._may_grow = False

    def resume_growing(self) -> None:
        self._may_grow = True

    @property
    def free_ids(self) -> Sequence[int]:
        """The free list itself, next to be handed out last; to look at only."""
        return self._free_ids

    def allocate(self, num_blocks: int) -> list[int]:
        """Take ``num_blocks`` ids out of the pool, which must have them. Cost O(num_blocks)."""
        num_kept = len(self._free_ids) - num_blocks
        assert 0 <= num_kept <= len(self._free_ids), f"{num_blocks} blocks wanted, {len(self._free_ids)} free"
        taken = self._free_ids[num_kept:]
        del self._free_ids[num_kept:]
        self._num_untouched = min(self._num_untouched, num_kept)  # they lie below all others
        taken.reverse()
        for block_id in taken:
            self._is_free[block_id] = False
        return taken

    def free(self, block_ids: Sequence[int]) -> None:
        """Take back allocated ids; the next ``allocate`` of as many returns them in the same order."""
        for block_id in block_ids:
            assert 0 <= block_id < self._num_blocks, f"block {block_id} is not in [0, {self._num_blocks})"
            assert not self._is_free[block_id], f"block {block_id} freed twice"
            self._is_free[block_id] = True
        self._free_ids.extend(reversed(block_ids))

    def rebuild(self, owned_ids: Collection[int]) -> list[str]:
        """Make the free list everything but ``owned_ids``, lowest first out, and say what was wrong with it.

        For repair. Cost: O(all blocks).
        """
        owned = set(owned_ids)
        listed = set(self._free_ids)
        self._free_ids = [block_id for block_id in reversed(range(self._num_blocks)) if block_id not in owned]
        self._is_free = bytearray(block_id not in owned for block_id in range(self._num_blocks))
        repairs = []
        if lost := sorted(set(self._free_ids) - listed):
            repairs.append(f"returned blocks {lost} to the free list")
        if taken := sorted(listed & owned):
            repairs.append(f"took blocks {taken} off the free list, as they have an owner")
        return repairs
