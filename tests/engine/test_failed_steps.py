"""What a failed step costs: one sequence where memory ran out, its requests otherwise, the engine at the third."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.request import FinishReason
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.engine.failed_steps import MAX_CONSECUTIVE_FAILED_STEPS
from tests.engine.house import VOCAB_SIZE, House, joined
from tests.fakes import ContentExecutor, expected_output, make_request


class PoorExecutor(ContentExecutor):
    """Moves what is to move, then has no memory for more than ``max_tokens`` tokens of one sequence in a step."""

    max_tokens = 8

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        if any(len(item.token_ids) > self.max_tokens for item in plan.scheduled):
            super().execute(replace(plan, scheduled=()), None)
            raise MemoryError
        return super().execute(plan, token_mask)


def test_a_failed_allocation_ends_one_request_and_never_the_engine() -> None:
    house = House(executor=PoorExecutor(32, 4, VOCAB_SIZE))
    prompts = {"small": [1, 2, 3], "other": [4, 5]}
    for request_id, prompt in prompts.items():
        house.engine.submit(make_request(prompt, request_id=request_id, max_tokens=12, ignore_eos=True))
    outputs = house.engine.step()
    prompts["sharer"] = [1, 2, 3, 9, 8]  # goes on from a copy of the first one's block, in a step that fails
    house.engine.submit(make_request(prompts["sharer"], request_id="sharer", max_tokens=12, ignore_eos=True))
    for number in range(2 * MAX_CONSECUTIVE_FAILED_STEPS):
        house.engine.submit(make_request(list(range(11, 21)), request_id=f"large{number}", max_tokens=2))
        outputs += house.engine.step()
    outputs += house.run()
    for request_id, prompt in prompts.items():
        assert joined(outputs, request_id)[1] == expected_output(prompt, 12, VOCAB_SIZE)
    for number in range(2 * MAX_CONSECUTIVE_FAILED_STEPS):
        _, _, last = joined(outputs, f"large{number}")
        assert last.finish_reason is FinishReason.ERROR
        assert last.error is not None
        assert "no memory" in last.error.message
    assert house.kv.num_private_blocks == 0
    copied = [plan.step_id for plan in house.executor.plans if plan.transfers]
    assert [plan.step_id for plan in house.executor.plans].index(copied[0]) == 1


class BrokenExecutor(ContentExecutor):
    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        raise ZeroDivisionError


def test_an_executor_that_always_fails_is_the_engines_end() -> None:
    house = House(executor=BrokenExecutor(32, 4, VOCAB_SIZE))
    for number in range(MAX_CONSECUTIVE_FAILED_STEPS - 1):
        house.engine.submit(make_request([1, 2], request_id=str(number), max_tokens=2))
        outputs = house.engine.step()
        assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]
    house.engine.submit(make_request([1, 2], request_id="last", max_tokens=2))
    with pytest.raises(ZeroDivisionError):
        house.engine.step()
