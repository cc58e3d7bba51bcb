"""How long it takes to copy a KV block between two tiers: learned from the copies that are made."""

from __future__ import annotations

from headrace.core.step import StepPlan, StepResult, TransferKind

_LEARNING_RATE = 0.1
_ASSUMED_S = 0.001
_ASSUMED_BYTES_PER_S = 2e9
"""Slower than any machine in use copies."""


class TransferCosts:
    """Seconds of one block's copy: what is assumed of its size at first, then an average over the copies of late."""

    def __init__(self) -> None:
        self.block_s = _ASSUMED_S

    def assume(self, block_bytes: int) -> None:
        """Before any copy was timed: blocks are of this size."""
        self.block_s = block_bytes / _ASSUMED_BYTES_PER_S

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step in which blocks went between tiers, and only that."""
        if plan.transfers and all(transfer.kind is not TransferKind.COPY for transfer in plan.transfers):
            self.block_s += _LEARNING_RATE * (result.transfer_s / len(plan.transfers) - self.block_s)
