"""Small random workloads and replicas for simulations, all drawn from one seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from headrace.core.service_level import STANDARD_CLASSES, ServiceLevel
from headrace.scheduler.build import BatchLimits
from headrace.scheduler.cost_model import StepCosts
from headrace.sim.policies import SimulatedPolicy
from headrace.sim.simulator import Replica
from headrace.sim.step_time import LinearStepTime
from headrace.sim.trace import TraceRequest
from headrace.sim.workload import OfferedRequest

BLOCK_SIZE = 4
MAX_MODEL_LEN = 160


@dataclass(frozen=True)
class Case:
    """What one seed stands for."""

    requests: list[OfferedRequest]
    replica: Replica


def random_case(seed: int, policy: SimulatedPolicy | None = None) -> Case:
    """A dozen requests of several tenants, classes and shared prefixes, on a pool that is often too small."""
    rng = random.Random(seed)
    names: tuple[SimulatedPolicy, ...] = ("fcfs", "priority", "slo")
    chosen = policy or rng.choice(names)
    requests = _requests(rng, rng.randint(1, 16))
    max_num_seqs = rng.randint(1, 8)
    step_s = rng.choice([0.001, 0.005, 0.02])
    costs = StepCosts(
        fixed_s=step_s,
        num_free_tokens=rng.choice([0.0, 4.0, 16.0]),
        token_s=step_s / 8,
        decode_s=step_s / 50,
        context_s=step_s / 2000,
        pair_s=step_s / 5000,
    )
    replica = Replica(
        policy=chosen,
        step_time=LinearStepTime(costs),
        known_costs=rng.choice([costs, None]),
        num_blocks=MAX_MODEL_LEN // BLOCK_SIZE + rng.choice([0, 2, 10, 60]),
        block_size=BLOCK_SIZE,
        limits=BatchLimits(max_num_seqs, max_num_seqs + rng.choice([0, 3, 16, 64]), MAX_MODEL_LEN),
        enable_prefix_caching=rng.random() < 0.8,
        num_host_blocks=(num_host_blocks := rng.choice([0, 0, 8, 100])),
        num_disk_blocks=rng.choice([0, 60]) if num_host_blocks else 0,
        block_transfer_s=step_s / 100,
    )
    return Case(requests, replica)


def _requests(rng: random.Random, count: int) -> list[OfferedRequest]:
    gap_s = rng.choice([0.0, 0.01, 0.1, 1.0])
    arrival_s = 0.0
    requests = []
    for index in range(count):
        arrival_s += rng.expovariate(1.0) * gap_s
        name, level = _level(rng)
        requests.append(OfferedRequest(index, arrival_s, 0, name, level, _trace(rng, arrival_s)))
    return requests


def _level(rng: random.Random) -> tuple[str, ServiceLevel]:
    name = rng.choice(list(STANDARD_CLASSES))
    level = STANDARD_CLASSES[name]
    if rng.random() < 0.2:
        return "strict", ServiceLevel(0.05, 0.01, rng.choice([0.02, 0.2, 2.0]))
    return name, level


def _trace(rng: random.Random, arrival_s: float) -> TraceRequest:
    num_input = rng.randint(1, 90)
    num_output = rng.randint(1, 60)
    family = rng.randint(0, 3)
    num_shared = rng.randint(0, math.ceil(num_input / 8)) if family else 0
    shared = tuple(100 * family + position for position in range(num_shared))
    own = tuple(10_000 + rng.randint(0, 1 << 20) for _ in range(num_input // 8 - num_shared))
    return TraceRequest(arrival_s, num_input, num_output, shared + own, 8, tenant=str(rng.randint(0, 2)))
