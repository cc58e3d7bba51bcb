"""What becomes of the work of a sequence that has to give way: kept in the host tier, or computed again.

Owns the choice between the two. It does not choose who gives way (the policy does) and moves nothing.
"""

from __future__ import annotations

from typing import Protocol

from headrace.core.sequence import Sequence
from headrace.scheduler.meters import SchedulingMeters


class SwapChoice(Protocol):
    """Decides for one victim at a time."""

    def prefers_swap(self, seq: Sequence, block_size: int) -> bool:
        """Whether the private blocks of a running sequence are worth copying out and in again."""
        ...


class AlwaysRecompute:
    """For engines without a host tier."""

    def prefers_swap(self, seq: Sequence, block_size: int) -> bool:
        return False


class SwapWhenCheaper:
    """Swaps where copying out and back takes less time than computing again would.

    What a sequence shares stays in the prefix cache
    (and goes down the tiers if it must) whatever is chosen here, so only the private part counts.
    """

    def __init__(self, meters: SchedulingMeters) -> None:
        self._meters = meters

    def prefers_swap(self, seq: Sequence, block_size: int) -> bool:
        start = seq.num_shared_blocks * block_size
        num_blocks = -(-(seq.num_computed_tokens - start) // block_size)
        swap_s = 2 * num_blocks * self._meters.transfers.block_s
        return num_blocks > 0 and swap_s < self._meters.costs.costs.prefill_s(start, seq.num_computed_tokens)
