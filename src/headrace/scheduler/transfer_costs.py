"""How long it takes to copy a KV block between two tiers: learned from the copies that are made."""

from __future__ import annotations

from headrace.core.step import StepPlan, StepResult

_LEARNING_RATE = 0.1
_ASSUMED_S = 0.001
"""Until the first copies have been timed: more than a machine in use needs, less than computing takes."""


class TransferCosts:
    """Seconds of one block's copy, an average over those of late."""

    def __init__(self) -> None:
        self.block_s = _ASSUMED_S

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step; one without transfers says nothing."""
        if plan.transfers:
            self.block_s += _LEARNING_RATE * (result.transfer_s / len(plan.transfers) - self.block_s)
