"""What sequences looked up in the prefix cache, and what they found."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.sequence import Sequence


@dataclass(slots=True)
class PrefixCacheStats:
    """Counts that only grow: tokens looked up, those of them found, blocks evicted for want of room.

    ``restored_tokens`` were found below the pool, in the host tier; ``hit_tokens`` in the pool itself, whether the
    sequence shares them or got a copy.
    """

    query_tokens: int = 0
    hit_tokens: int = 0
    restored_tokens: int = 0
    evicted_blocks: int = 0


class LookupMeter:
    """Counts a look-up once its sequence gets room to go on.

    A sequence too large for the moment is looked up again and again, which says nothing about the cache.
    """

    def __init__(self, block_size: int) -> None:
        self.stats = PrefixCacheStats()
        self._block_size = block_size
        self._uncounted: dict[int, tuple[int, int]] = {}

    def note(self, seq: Sequence, num_tokens: int, num_copied: int) -> None:
        """So many tokens of ``seq`` were looked up, and so many are to be copied."""
        self._uncounted[seq.seq_id] = (num_tokens, num_copied)

    def count(self, seq: Sequence) -> None:
        """``seq`` goes on with what was found, unless it did before."""
        noted = self._uncounted.pop(seq.seq_id, None)
        if noted is not None:
            num_tokens, num_copied = noted
            num_hit = seq.num_shared_blocks * self._block_size + num_copied
            self.stats.query_tokens += num_tokens
            self.stats.hit_tokens += num_hit
            self.stats.restored_tokens += seq.num_computed_tokens - num_hit

    def forget(self, seq_id: int) -> None:
        self._uncounted.pop(seq_id, None)
