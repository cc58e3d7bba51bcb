"""Memory that was planned for blocks and not taken yet, and whether it may be taken."""

from __future__ import annotations

from headrace.cache.block_pool import BlockPool
from headrace.cache.tiers import TierSlots


class BlockGrowth:
    """The pool and the host tier as a ``GrowingCache``."""

    def __init__(self, pool: BlockPool, host: TierSlots) -> None:
        self._pool = pool
        self._host = host

    @property
    def num_untouched_blocks(self) -> int:
        """Blocks here and in the host tier that nothing was ever written to."""
        return self._pool.num_untouched + self._host.num_untouched

    def stop_growing(self) -> None:
        """From now on evict what is cached before taking blocks that are untouched."""
        self._pool.stop_growing()
        self._host.stop_growing()

    def resume_growing(self) -> None:
        self._pool.resume_growing()
        self._host.resume_growing()
