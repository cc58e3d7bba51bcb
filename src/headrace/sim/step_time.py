"""How long a step takes, said of its features alone: the seam between what is simulated and on what.

What makes features seconds is a ``StepTime``: a roofline of a device, a profile of this machine, or a formula
fitted to somebody's log. It knows no policy; what a policy believes about step times is its own.
"""

from __future__ import annotations

from typing import Protocol

from headrace.scheduler.cost_model import StepCostModel, StepCosts, StepFeatures, chunk_pairs


class StepTime(Protocol):
    """Seconds of a step that computes ``features`` and samples ``num_samples`` tokens.

    Pure: equal steps take equal times.
    """

    def step_s(self, features: StepFeatures, num_samples: int) -> float: ...


class LinearStepTime:
    """A device whose steps cost just what ``StepCosts`` says."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def step_s(self, features: StepFeatures, num_samples: int) -> float:
        return self._costs.predict(features)


_TOKENS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048)
_CONTEXTS = (128, 1024, 4096)


def costs_of(step_time: StepTime) -> StepCosts:
    """What a cost model learns of a device from a short profile: decodes and chunks of several sizes and contexts."""
    model = StepCostModel()
    for _ in range(2):
        for count in _TOKENS:
            for context in _CONTEXTS:
                for features in (
                    StepFeatures(count, count * context, 0, 0),
                    StepFeatures(0, 0, count, chunk_pairs(context, count)),
                    StepFeatures(32, 32 * context, count, chunk_pairs(context, count)),
                ):
                    model.observe(features, step_time.step_s(features, features.num_decodes))
    return model.costs
