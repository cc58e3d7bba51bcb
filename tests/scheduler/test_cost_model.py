"""Step costs: the formula on paper, and that the model finds it again from noisy steps."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from headrace.scheduler.cost_model import StepCostModel, StepCosts, StepFeatures, chunk_pairs
from headrace.scheduler.step_budget import BatchLoad, StepBudget

MACHINE = StepCosts(fixed_s=0.02, num_free_tokens=16, token_s=5e-4, decode_s=2e-4, context_s=1e-7, pair_s=2e-8)


def random_step(rng: random.Random) -> StepFeatures:
    num_decodes = rng.randrange(0, 33)
    num_new_tokens = rng.choice([0, 0, rng.randrange(2, 256)])
    return StepFeatures(
        num_decodes=num_decodes,
        decode_context=num_decodes * rng.randrange(10, 2000),
        num_new_tokens=num_new_tokens,
        chunk_context=chunk_pairs(rng.randrange(0, 4000), num_new_tokens),
    )


def test_a_chunk_looks_at_every_earlier_token_and_itself():
    assert chunk_pairs(0, 3) == 1 + 2 + 3
    assert chunk_pairs(10, 2) == 11 + 12


def test_the_roofline_form_is_the_larger_of_weights_and_tokens_plus_the_rest():
    costs = StepCosts.roofline(0.010, 1e-4, context_s=1e-6, pair_s=0.0, overhead_s=0.003)
    assert costs.predict(StepFeatures(8, 1000, 0, 0)) == pytest.approx(0.010 + 0.001 + 0.003)
    assert costs.predict(StepFeatures(8, 1000, 192, 0)) == pytest.approx(0.020 + 0.001 + 0.003)


@pytest.mark.parametrize("context", [0, 5000])
@pytest.mark.parametrize("seconds", [1e-4, 0.01, 1.0])
def test_the_affordable_tokens_are_the_most_whose_cost_fits(seconds, context):
    count = MACHINE.num_affordable_tokens(seconds, 8, context)
    assert MACHINE.chunk_s(8, count, count * context + count * count // 2) <= seconds * (1 + 1e-9)
    more = count + 2
    assert MACHINE.chunk_s(8, more, more * context + more * more // 2) > seconds


def test_costs_survive_being_written_and_read():
    assert msgspec.json.decode(msgspec.json.encode(MACHINE), type=StepCosts) == MACHINE


@pytest.mark.parametrize("seed", range(5))
def test_the_model_learns_an_unknown_machine_from_noisy_steps(seed):
    rng = random.Random(seed)
    model = StepCostModel()
    for _ in range(400):
        step = random_step(rng)
        model.observe(step, MACHINE.predict(step) * rng.uniform(0.95, 1.05))
    errors = sorted(
        abs(model.predict(step) / MACHINE.predict(step) - 1) for step in (random_step(rng) for _ in range(200))
    )
    assert errors[100] < 0.02
    assert errors[190] < 0.10
    assert model.median_error < 0.05
    assert model.costs.token_s == pytest.approx(MACHINE.token_s, rel=0.15)


def test_the_model_follows_a_machine_that_slows_down():
    rng = random.Random(1)
    model = StepCostModel(MACHINE)
    for _ in range(1500):
        step = random_step(rng)
        model.observe(step, 2 * MACHINE.predict(step) * rng.uniform(0.95, 1.05))
    step = StepFeatures(16, 8000, 64, 64 * 500)
    assert model.predict(step) == pytest.approx(2 * MACHINE.predict(step), rel=0.05)


def test_a_machine_that_is_slow_for_a_while_is_noticed_within_twenty_steps_and_forgiven_as_fast():
    rng = random.Random(1)
    model = StepCostModel(MACHINE)

    def run(num_steps: int, slowness: float) -> float:
        for _ in range(num_steps):
            step = random_step(rng)
            model.observe(step, slowness * MACHINE.predict(step))
        probe = StepFeatures(16, 8000, 64, 4000)
        return model.predict(probe) / MACHINE.predict(probe)

    assert run(2000, 1.0) == pytest.approx(1.0, abs=0.01)
    assert run(20, 1.3) == pytest.approx(1.3, abs=0.06)
    assert run(20, 1.0) == pytest.approx(1.0, abs=0.06)


def test_a_disturbed_step_does_not_spoil_what_was_learned():
    rng = random.Random(2)
    model = StepCostModel(MACHINE)
    for index in range(400):
        step = random_step(rng)
        model.observe(step, MACHINE.predict(step) * (30.0 if index % 50 == 0 else rng.uniform(0.97, 1.03)))
    step = StepFeatures(8, 4000, 0, 0)
    assert model.predict(step) == pytest.approx(MACHINE.predict(step), rel=0.1)
    assert model.median_error < 0.05


def test_a_model_that_knows_predicts_as_it_was_told_before_any_step():
    step = StepFeatures(8, 4000, 32, 32 * 100)
    assert StepCostModel(MACHINE).predict(step) == MACHINE.predict(step)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_durations_that_mean_nothing_are_ignored(seconds):
    model = StepCostModel(MACHINE)
    model.observe(StepFeatures(1, 10, 0, 0), seconds)
    assert model.costs == MACHINE
    assert model.num_observed == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_step_is_thought_to_take_no_time_whatever_was_observed(seed):
    """A fit of few and disturbed steps can say that everything is for nothing."""
    rng, model = random.Random(seed), StepCostModel()
    for _ in range(60):
        num_decodes, num_new = rng.choice([0, 1, 5]), rng.choice([4, 16, 64])
        features = StepFeatures(num_decodes, 20 * num_decodes, num_new, chunk_pairs(0, num_new))
        model.observe(features, rng.choice([1.0, 1.0, 300.0]) * rng.uniform(1e-4, 3e-4))
        check_that_time_passes(model.costs)


def test_time_passes_on_a_machine_that_costs_nothing():
    check_that_time_passes(StepCosts(fixed_s=0.0, num_free_tokens=256.0, token_s=0.0))


def check_that_time_passes(costs):
    assert costs.predict(StepFeatures(1, 1, 0, 0)) > 0
    assert costs.predict(StepFeatures(0, 0, 5, 15)) > 0
    load = BatchLoad([], [], 0, math.inf, math.inf, 0.0)
    for max_num_tokens in (0, 512):
        assert math.isfinite(StepBudget(costs, load, max_num_tokens, 0.01).steady_rate())
