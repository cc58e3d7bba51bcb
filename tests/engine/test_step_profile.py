"""What steps cost is measured while nobody waits, and remembered."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.step import StepPlan, StepResult
from headrace.engine.step_profile import MAX_PIECE_S, MAX_PROFILE_S, StepCostFile, StepProfile
from headrace.scheduler.cost_model import StepCostModel, StepCosts, StepFeatures
from headrace.scheduler.scheduler import BatchLimits

MACHINE = StepCosts(fixed_s=0.002, num_free_tokens=0, token_s=5e-5, decode_s=1e-4, context_s=1e-8, pair_s=1e-9)
LIMITS = BatchLimits(64, 512, 2048)


class Machine:
    """Takes as long as ``MACHINE`` says; remembers what it was asked to do."""

    def __init__(self, num_blocks: int, slowness: float = 1.0) -> None:
        self.num_blocks = num_blocks
        self.slowness = slowness
        self.features: list[StepFeatures] = []
        self.breaks = False

    def execute(self, plan: StepPlan, token_mask: object) -> StepResult:
        if self.breaks:
            raise RuntimeError("no such kernel")
        assert len({block for item in plan.scheduled for block in item.block_ids.tolist()}) == sum(
            len(item.block_ids) for item in plan.scheduled
        )
        self.features.append(StepFeatures.of(plan))
        seconds = self.slowness * MACHINE.predict(self.features[-1])
        return StepResult(sampled_token_ids=[0] * plan.num_samples, elapsed_s=seconds)

    def close(self) -> None:
        pass


def profile_of(folder: Path, machine: Machine, costs: StepCostModel) -> tuple[StepProfile, KVCacheManager]:
    kv = KVCacheManager(machine.num_blocks, 16, enable_prefix_caching=True)
    return StepProfile(machine, kv, costs, LIMITS, StepCostFile(folder, ("cpu", "model"))), kv


def test_an_idle_engine_learns_its_machine_in_short_pieces_and_keeps_it(tmp_path):
    machine, costs = Machine(1024), StepCostModel()
    profile, kv = profile_of(tmp_path, machine, costs)
    while profile.advance():
        assert kv.num_free_blocks == 1024
    assert costs.is_known
    for features in machine.features:
        assert costs.predict(features) == pytest.approx(MACHINE.predict(features), rel=0.1)
    assert StepCostFile(tmp_path, ("cpu", "model")).load() == costs.costs
    assert StepCostFile(tmp_path, ("cpu", "other")).load() is None


def test_what_an_earlier_run_learned_is_not_measured_again(tmp_path):
    machine = Machine(1024)
    profile, _ = profile_of(tmp_path, machine, StepCostModel(MACHINE))
    assert not profile.advance()
    assert machine.features == []


def test_a_slow_machine_is_given_no_long_step_and_no_long_time(tmp_path):
    machine = Machine(1024, slowness=50.0)
    profile, _ = profile_of(tmp_path, machine, StepCostModel())
    while profile.advance():
        pass
    spent = [machine.slowness * MACHINE.predict(features) for features in machine.features]
    assert sum(spent) < MAX_PROFILE_S + 1.0
    assert sorted(spent)[len(spent) // 2] < MAX_PIECE_S


def test_blocks_in_use_are_left_alone(tmp_path):
    machine = Machine(3)
    profile, kv = profile_of(tmp_path, machine, StepCostModel())
    while profile.advance():
        pass
    assert all(features.num_tokens <= 3 * 16 for features in machine.features)
    assert kv.check() == []


def test_a_machine_that_cannot_do_it_ends_the_measuring_and_nothing_else(tmp_path, caplog):
    machine = Machine(1024)
    machine.breaks = True
    profile, kv = profile_of(tmp_path, machine, StepCostModel())
    with caplog.at_level(logging.WARNING):
        assert not profile.advance()
    assert "made-up step failed" in caplog.text
    assert kv.num_free_blocks == 1024
    machine.breaks = False
    assert not profile.advance()


def test_a_file_of_nonsense_is_named_and_ignored(tmp_path, caplog):
    file = StepCostFile(tmp_path, ("a",))
    file.save(MACHINE)
    (written,) = tmp_path.iterdir()
    assert file.load() == MACHINE
    written.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert file.load() is None
    assert "cannot be used" in caplog.text


def test_a_folder_that_cannot_be_written_to_is_no_failure(tmp_path):
    (tmp_path / "taken").write_text("")
    StepCostFile(tmp_path / "taken", ("a",)).save(MACHINE)
