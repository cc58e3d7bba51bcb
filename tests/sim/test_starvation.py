"""Under an overload that never ends, whoever has waited long enough is served: the bound of each policy."""

from __future__ import annotations

import pytest

from headrace.core.service_level import STANDARD_CLASSES
from headrace.scheduler.build import BatchLimits, PolicyName
from headrace.scheduler.cost_model import StepCosts
from headrace.scheduler.waiting_lanes import LATE_PATIENCE_S
from headrace.sim.record import RequestRecord
from headrace.sim.simulator import Replica, Simulator
from headrace.sim.step_time import LinearStepTime
from headrace.sim.trace import TraceRequest
from headrace.sim.workload import OfferedRequest

COSTS = StepCosts(fixed_s=0.02, num_free_tokens=16.0, token_s=0.001, decode_s=0.0002)
OVERLOAD_S = 100.0
"""How long twice as much interactive work comes as can be done."""


def offer(index: int, arrival_s: float, service_class: str, num_input: int) -> OfferedRequest:
    trace = TraceRequest(arrival_s, num_input, 8)
    return OfferedRequest(index, arrival_s, 0, service_class, STANDARD_CLASSES[service_class], trace)


def play(policy: PolicyName) -> list[RequestRecord]:
    """A batch request early in the overload; its record comes first."""
    requests = [offer(0, 1.0, "batch", 500)]
    requests += [offer(1 + i, i / 10, "interactive", 200) for i in range(int(OVERLOAD_S * 10))]
    requests = [
        offer(i, r.arrival_s, r.service_class, r.trace.num_input_tokens)
        for i, r in enumerate(sorted(requests, key=lambda request: request.arrival_s))
    ]
    replica = Replica(
        policy=policy,
        step_time=LinearStepTime(COSTS),
        known_costs=COSTS,
        num_blocks=2000,
        limits=BatchLimits(64, 512, 4096),
    )
    simulator = Simulator(requests, replica)
    simulator.run()
    return sorted(simulator.records, key=lambda record: record.offered.service_class)


def test_batch_work_comes_to_its_turn_beside_endless_urgent_work() -> None:
    batch, *others = play("slo")
    assert sum(record.first_token_s > 0 for record in others) > 0
    assert batch.ttft_s < 30.0 + LATE_PATIENCE_S + 5.0
    assert batch.finished_s < OVERLOAD_S


@pytest.mark.parametrize("policy", ["fcfs", "slo"])
def test_an_interactive_request_that_is_taken_in_does_not_wait_for_ever(policy: PolicyName) -> None:
    records = play(policy)
    served = [record for record in records if record.num_output_tokens > 0]
    assert len(served) > 0.3 * len(records)
    if policy == "slo":
        assert max(record.ttft_s for record in served if record.offered.service_class == "interactive") < 1.0
