from __future__ import annotations

import numpy as np
import pytest

from headrace.core.step import PendingMask, ScheduledSequence, StepPlan, StepResult
from headrace.engine.expected_step import expected_step_s
from headrace.scheduler.cost_model import StepCostModel, StepCosts
from tests.engine.house import VOCAB_SIZE, House
from tests.fakes import ContentExecutor, make_request

COSTS = StepCosts(fixed_s=0.5, num_free_tokens=0.0, token_s=0.25)
PARAMETERS_7B = 7_000_000_000


def plan_of(num_tokens: int) -> StepPlan:
    return StepPlan(1, (ScheduledSequence(1, [5] * num_tokens, 0, np.zeros(64, np.int32), None),))


def test_what_is_known_of_the_machine_foretells_a_step() -> None:
    assert expected_step_s(plan_of(8), StepCostModel(COSTS), PARAMETERS_7B) == pytest.approx(0.5 + 8 * 0.25)


def test_an_unknown_machine_is_taken_for_a_slow_core() -> None:
    assert expected_step_s(plan_of(512), StepCostModel(), PARAMETERS_7B) == pytest.approx(2 * 7 * 512 / 10)


class Watched(ContentExecutor):
    """Asks how long its step is foretold to take, as another thread would."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.house: House | None = None
        self.foretold: list[float] = []

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        assert self.house is not None
        self.foretold.append(self.house.engine.expected_step_s)
        return super().execute(plan, token_mask)


def test_an_engine_foretells_the_step_it_computes_and_none_between_steps() -> None:
    executor = Watched(32, 4, VOCAB_SIZE)
    house = executor.house = House(executor=executor)
    house.engine.submit(make_request([1, 2, 3], max_tokens=2))
    house.engine.step()
    assert executor.foretold[0] > 0.0
    assert house.engine.expected_step_s == 0.0
