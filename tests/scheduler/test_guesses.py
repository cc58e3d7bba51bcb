"""Guesses get what others leave: no request is served later for one, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.program_place import ProgramPlace
from headrace.core.request import Request
from headrace.core.sequence import Sequence
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.scheduler.build import PolicyName
from headrace.scheduler.cost_model import StepCosts, StepFeatures
from headrace.scheduler.free_sequences import FreeSequences
from tests.fakes import ContentExecutor, expected_output, make_request
from tests.scheduler.harness import EOS, Harness

FREE = StepCosts(fixed_s=1.0, num_free_tokens=3.0, token_s=1.0)
"""Three sequences decode in the time of one, and not a fourth."""


class Machine(ContentExecutor):
    """Takes as long as ``FREE`` says."""

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        return replace(super().execute(plan, token_mask), elapsed_s=FREE.predict(StepFeatures.of(plan)))


def house_of(**settings: Any) -> Harness:
    house = Harness(costs=FREE, **settings)
    house.executor = Machine(house.kv.num_blocks, house.kv.block_size)
    return house


def guess(prompt: list[int], request_id: str = "g", **sampling: object) -> Request:
    request = make_request(prompt, request_id, **sampling)
    return msgspec.structs.replace(request, program=ProgramPlace("p", 0.0, is_guess=True))


def output_of(seq: Sequence) -> list[int]:
    return seq.token_ids[seq.num_prompt_tokens :]


def decoding(count: int) -> StepFeatures:
    return StepFeatures(count, 0, 0, 0)


def test_free_sequences_are_those_that_cost_no_time() -> None:
    free = FreeSequences()
    assert free.count(FREE) == 3
    assert free.count(msgspec.structs.replace(FREE, decode_s=0.3)) == 1


def test_what_was_seen_counts_more_than_what_the_cost_model_says() -> None:
    free = FreeSequences()
    for _ in range(4):
        for count, seconds in ((1, 1.0), (2, 1.05), (3, 1.5)):
            free.observe(decoding(count), StepResult([], seconds))
    assert free.count(FREE) == 2
    free.observe(decoding(2), StepResult([], 100.0))  # somebody disturbed it
    assert free.count(FREE) == 2


def test_a_guess_alone_runs_like_any_request() -> None:
    house = house_of()
    seq = house.add(guess([1, 2, 3], max_tokens=5, ignore_eos=True))
    house.run()
    assert output_of(seq) == expected_output([1, 2, 3], 5, 50)


@pytest.mark.parametrize("policy", ["slo", "fcfs", "priority"])
def test_as_many_guesses_run_beside_a_stream_as_cost_it_nothing(policy: PolicyName) -> None:
    house = house_of(policy=policy)
    stream = house.add(make_request([5], max_tokens=20, ignore_eos=True))
    house.step()
    seq = house.add(guess(list(range(1, 9)), max_tokens=2, ignore_eos=True))
    sizes = []
    while not seq.is_finished:
        plan, _ = house.step()
        sizes.append({item.seq_id: len(item.token_ids) for item in plan.scheduled})
    assert sizes[:2] == [{stream.seq_id: 1, seq.seq_id: 8}, {stream.seq_id: 1, seq.seq_id: 1}]
    more = [house.add(guess([number], str(number), max_tokens=4, ignore_eos=True)) for number in (20, 21, 22)]
    plan, _ = house.step()
    assert {item.seq_id for item in plan.scheduled} == {stream.seq_id, more[0].seq_id, more[1].seq_id}


@pytest.mark.parametrize("policy", ["slo", "fcfs", "priority"])
def test_a_guess_waits_while_others_have_prompts_or_fill_what_is_free(policy: PolicyName) -> None:
    house = house_of(policy=policy)
    seq = house.add(guess([1, 2, 3], max_tokens=20, ignore_eos=True))
    house.step()
    prompts = ([7] * 20, [8] * 20, [9] * 20)
    others = [house.add(make_request(prompt, str(prompt[0]), max_tokens=6, ignore_eos=True)) for prompt in prompts]
    while not all(other.is_finished for other in others):
        plan, _ = house.step()
        if all(other.has_begun and not other.is_finished for other in others):
            assert seq.seq_id not in {item.seq_id for item in plan.scheduled}
    house.run()
    assert output_of(seq) == expected_output([1, 2, 3], 20, 50)


def test_a_guess_that_turned_out_right_is_served_like_the_others() -> None:
    house = house_of()
    for number in range(3):
        house.add(make_request([number + 1], f"r{number}", max_tokens=30, ignore_eos=True))
    house.step()
    seq = house.add(guess([1, 2, 3], max_tokens=3, ignore_eos=True))
    for _ in range(3):
        house.step()
    assert not seq.has_begun
    seq.is_guess = False
    for _ in range(3):
        house.step()
    assert seq.is_finished


def test_a_guess_gives_its_blocks_back_first_and_nobody_waits_for_what_it_computes() -> None:
    house = house_of(num_blocks=8, max_num_batched_tokens=8)
    seq = house.add(guess([1] * 8, max_tokens=12, ignore_eos=True))
    house.step()
    stream = house.add(make_request([1] * 8, max_tokens=16, ignore_eos=True))
    house.run()
    assert stream.num_preemptions == 0
    assert output_of(stream) == expected_output([1] * 8, 16, 50)
    assert output_of(seq) == expected_output([1] * 8, 12, 50)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(1, 6), min_size=1, max_size=24), st.integers(1, 12)),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from(["slo", "fcfs", "priority"]),
    st.integers(12, 40),
    st.integers(0, 10),
)
def test_any_mixture_of_guesses_and_others_ends_with_the_outputs_of_solo_runs(
    workload: list[tuple[bool, list[int], int]], policy: PolicyName, num_blocks: int, confirmed_at: int
) -> None:
    house = house_of(num_blocks=num_blocks, policy=policy)
    sequences = []
    for number, (is_guess, prompt, max_tokens) in enumerate(workload):
        make = guess if is_guess else make_request
        sequences.append(house.add(make(prompt, f"r{number}", max_tokens=max_tokens)))
        house.step()
        if number == confirmed_at:
            for seq in sequences:
                seq.is_guess = False
    house.run()
    for seq, (_, prompt, max_tokens) in zip(sequences, workload, strict=True):
        assert output_of(seq) == expected_output(prompt, max_tokens, 50, EOS)
    assert house.kv.num_private_blocks == 0


def test_of_equally_urgent_calls_the_program_nearest_to_its_end_goes_first() -> None:
    house = house_of(policy="slo", max_num_seqs=1)
    house.add(make_request([9], "busy", max_tokens=2, ignore_eos=True))
    house.step()
    lengths = (40, 10, 25)
    for number, num_tokens_left in enumerate(lengths):
        request = make_request([number + 1], f"r{number}", max_tokens=2, ignore_eos=True)
        place = ProgramPlace(f"p{number}", 0.0, num_tokens_left)
        house.add(msgspec.structs.replace(request, program=place))
    house.run()
    programs = house.sequences[1:]
    order = sorted(range(3), key=lambda number: programs[number].first_scheduled_time)
    assert [lengths[number] for number in order] == [10, 25, 40]


def test_a_tenants_turn_comes_before_how_near_programs_are_to_their_end() -> None:
    house = house_of(policy="slo", max_num_seqs=1)
    house.add(make_request([9] * 8, "busy", max_tokens=8, ignore_eos=True, tenant="greedy"))
    house.step()
    for tenant, num_tokens_left in (("greedy", 1), ("modest", 90)):
        request = make_request([2, 3], tenant, max_tokens=2, ignore_eos=True, tenant=tenant)
        house.add(msgspec.structs.replace(request, program=ProgramPlace(tenant, 0.0, num_tokens_left)))
    house.run()
    greedy, modest = house.sequences[1:]
    assert modest.first_scheduled_time < greedy.first_scheduled_time
