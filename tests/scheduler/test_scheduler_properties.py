"""Random workloads on tiny pools: every invariant of the house, every step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.request import FinishReason, Request
from headrace.core.service_level import NO_TARGETS, ServiceLevel
from headrace.scheduler.cost_model import StepCosts
from tests.fakes import expected_output, make_request
from tests.scheduler.harness import EOS, Harness

BLOCK_SIZE = 4
VOCAB_SIZE = 50
LEVELS = [
    NO_TARGETS,
    ServiceLevel(ttft_s=5.0, tpot_s=0.5),
    ServiceLevel(ttft_s=0.02, tpot_s=0.01, may_be_late=True),
    ServiceLevel(tpot_s=0.02),
]
"""Targets that can be met, that cannot, and none; none of them ends a request."""

MACHINE = StepCosts(fixed_s=0.005, num_free_tokens=4, token_s=0.001, decode_s=0.0005, pair_s=1e-6)


@dataclass(frozen=True)
class Arrival:
    """One request of a random workload; ``abort_after`` counts steps from its arrival."""

    step: int
    request: Request
    abort_after: int | None


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    family = draw(st.integers(0, 2))
    length = draw(st.integers(1, 24))
    step = draw(st.integers(0, 12))
    shared = [(5 * i + family) % VOCAB_SIZE for i in range(length)]
    tail = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6))
    request = make_request(
        shared + tail,
        arrival_time=float(step),
        priority=draw(st.integers(0, 2)),
        cache_salt=draw(st.sampled_from(["", "", "x"])),
        max_tokens=draw(st.integers(1, 14)),
        min_tokens=0,
        ignore_eos=draw(st.booleans()),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        service_level=draw(st.sampled_from(LEVELS)),
        tenant=draw(st.sampled_from(["a", "b"])),
        weight=draw(st.sampled_from([1.0, 3.0])),
    )
    return Arrival(step, request, draw(st.none() | st.integers(0, 8)))


@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    workload=st.lists(arrivals(), min_size=1, max_size=8),
    spare_blocks=st.integers(0, 12),
    max_num_seqs=st.integers(1, 5),
    extra_budget=st.integers(0, 16),
    policy=st.sampled_from(["fcfs", "priority", "slo"]),
    prefix_caching=st.booleans(),
    costs=st.sampled_from([None, MACHINE]),
)
def test_any_workload_ends_with_the_outputs_of_solo_runs(
    workload, spare_blocks, max_num_seqs, extra_budget, policy, prefix_caching, costs
):
    longest = max(len(a.request.prompt_token_ids) + a.request.sampling.max_tokens for a in workload)
    house = Harness(
        num_blocks=-(-longest // BLOCK_SIZE) + spare_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_budget,
        max_model_len=64,
        policy=policy,
        prefix_caching=prefix_caching,
        costs=costs,
    )
    run_workload(house, workload)

    assert len(house.ended) == len(workload)
    for seq in house.sequences:
        output = seq.token_ids[seq.num_prompt_tokens :]
        sampling = seq.request.sampling
        alone = expected_output(
            seq.request.prompt_token_ids,
            sampling.max_tokens,
            VOCAB_SIZE,
            frozenset() if sampling.ignore_eos else EOS,
        )
        if seq.finish_reason is FinishReason.ABORT:
            assert output == alone[: len(output)]
        else:
            assert output == alone
    assert house.kv.num_private_blocks == 0


def run_workload(house: Harness, workload: list[Arrival]) -> None:
    """Deliver arrivals and aborts by step; a run that does not end within a generous bound has starved somebody."""
    pending = sorted(workload, key=lambda a: a.step)
    aborts: list[tuple[int, object]] = []
    bound = 40 + 60 * sum(len(a.request.prompt_token_ids) + a.request.sampling.max_tokens for a in workload)
    for step in range(bound):
        while pending and pending[0].step <= step:
            arrival = pending.pop(0)
            seq = house.add(arrival.request)
            if arrival.abort_after is not None:
                aborts.append((step + arrival.abort_after, seq))
        for when, seq in aborts:
            if when == step:
                house.abort(seq)
        if house.scheduler.has_work:
            house.step()
        elif not pending:
            return
    raise AssertionError(f"not finished after {bound} steps: {house.sequences}")
