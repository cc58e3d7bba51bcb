"""Skipping steps changes nothing: every time to the bit, every block, every count."""

from __future__ import annotations

import pytest

from headrace.sim.simulator import Simulator
from tests.sim.workloads import Case, random_case


def run_stepwise(case: Case) -> Simulator:
    simulator = Simulator(case.requests, case.replica)
    while simulator.has_work:
        simulator.tick()
    return simulator


def run_skipping(case: Case) -> tuple[Simulator, int]:
    """The finished simulator and how many steps it did not take one by one."""
    simulator = Simulator(case.requests, case.replica)
    num_ticks = 0
    while simulator.has_work:
        simulator.tick()
        num_ticks += 1
        simulator.skip()
    return simulator, simulator.num_steps - num_ticks


def observed(simulator: Simulator) -> list[object]:
    records = [[getattr(record, name) for name in record.__slots__] for record in simulator.records]
    kv = simulator.kv
    return [repr(records), simulator.clock.now(), simulator.num_steps, simulator.busy_s, kv.stats, kv.num_cached_blocks]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "vllm"])
def test_a_run_with_skipped_steps_is_the_run_step_by_step(policy: str) -> None:
    num_skipped = 0
    for seed in range(50):
        case = random_case(seed, policy)  # type: ignore[arg-type]
        skipping, count = run_skipping(case)
        num_skipped += count
        assert observed(skipping) == observed(run_stepwise(case)), f"seed {seed}"
        assert skipping.kv.check() == [], f"seed {seed}"
    assert num_skipped > 600


def test_no_step_is_skipped_for_a_policy_that_learns_from_each() -> None:
    assert all(run_skipping(random_case(seed, "slo"))[1] == 0 for seed in range(20))
