"""How long the step that is being computed may take: what tells a long step from one that hangs.

A module of its own because it is asked from another thread than the engine's; everything it reads is immutable.
"""

from __future__ import annotations

from typing import Final

from headrace.core.step import StepPlan
from headrace.scheduler.cost_model import StepCostModel, StepFeatures

FLOOR_OPERATIONS_PER_S: Final = 1e10
"""A slow core's worth of arithmetic: what is assumed of a machine until some of its steps were measured."""

_OPERATIONS_PER_PARAMETER: Final = 2
"""A multiplication and an addition for each token."""


def expected_step_s(plan: StepPlan, costs: StepCostModel, num_parameters: int) -> float:
    """Seconds that the cost model foretells for a plan; before it rests on anything, what a slow core would need."""
    features = StepFeatures.of(plan)
    foretold_s = costs.predict(features)
    if costs.is_known:
        return foretold_s
    floor_s = _OPERATIONS_PER_PARAMETER * num_parameters * features.num_tokens / FLOOR_OPERATIONS_PER_S
    return max(foretold_s, floor_s)
