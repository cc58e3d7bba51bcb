"""What a step that failed in the executor costs, and when the executor itself must be given up."""

from __future__ import annotations

import logging
from dataclasses import replace

from headrace.core.step import ScheduledSequence, StepPlan

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILED_STEPS = 3
"""A failed step fails its requests; this many in a row mean the executor itself is broken."""

NO_MEMORY = "there was no memory left to compute this request; try again later, or with a shorter prompt"


class FailedSteps:
    """The failures in a row so far."""

    def __init__(self) -> None:
        self._num_in_a_row = 0

    def note_success(self) -> None:
        self._num_in_a_row = 0

    def judge(self, plan: StepPlan, error: Exception) -> tuple[StepPlan, str]:
        """The part of ``plan`` whose sequences end, and what to tell them; raises ``error`` if it is the engine's end.

        Where memory ran out, one sequence's end is enough and the rest of the step is computed again: what they wrote
        is written anew. That does not hold where the step moved blocks between tiers as well.
        """
        if isinstance(error, MemoryError) and plan.scheduled and not plan.moves_between_tiers:
            largest = max(plan.scheduled, key=_size)
            logger.error("step %d found no memory; its largest sequence ends and the others go on", plan.step_id)
            return replace(plan, scheduled=(largest,)), NO_MEMORY
        self._num_in_a_row += 1
        logger.error(
            "step %d failed in the executor; %d sequences end", plan.step_id, len(plan.scheduled), exc_info=error
        )
        if self._num_in_a_row >= MAX_CONSECUTIVE_FAILED_STEPS:
            raise error
        return plan, f"the step that computed this request failed ({type(error).__name__}); try again"


def _size(item: ScheduledSequence) -> tuple[int, int]:
    """What a step takes grows with its new tokens first, then with those they attend to."""
    return len(item.token_ids), item.end
