"""Sequences that start together compute what they have in common once, whoever gives way in the same step."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from headrace.core.sequence import Sequence
from headrace.core.step import JoinedTokens
from headrace.scheduler.policy import NO_LIMIT, FcfsPolicy, StepShape
from tests.fakes import expected_output, make_request
from tests.scheduler.harness import Harness


def assert_answers(house: Harness) -> None:
    """Everybody got what they would have got alone."""
    for seq in house.sequences:
        prompt, sampling = seq.request.prompt_token_ids, seq.request.sampling
        assert sampling.max_tokens is not None
        expected = expected_output(prompt, sampling.max_tokens, house.executor.vocab_size)
        assert seq.token_ids[len(prompt) :] == expected


def test_what_arrives_together_is_computed_once_in_one_step() -> None:
    house = Harness()
    for last in (5, 6, 7):
        house.add(make_request([1, 2, 3, 4, 9, last], max_tokens=3, ignore_eos=True))
    plan, _ = house.step()
    assert [(item.start, len(item.token_ids)) for item in plan.scheduled] == [(0, 6), (5, 1), (5, 1)]
    assert [item.joined for item in plan.scheduled] == [(), (JoinedTokens(0, 0, 5),), (JoinedTokens(0, 0, 5),)]
    assert [seq.num_cached_tokens for seq in house.sequences] == [0, 5, 5]
    house.run()
    assert_answers(house)


def test_a_chunk_that_the_budget_cuts_is_joined_as_far_as_it_goes() -> None:
    house = Harness(max_num_batched_tokens=16)
    for last in (5, 6):
        house.add(make_request([*range(20, 31), last], max_tokens=3, ignore_eos=True))
    plan, _ = house.step()
    assert [(item.start, len(item.token_ids)) for item in plan.scheduled] == [(0, 12)]
    house.run()
    assert_answers(house)


class LetsThemIn(FcfsPolicy):
    """Lets everybody who waits go before those that run, and has those of ``victims`` give way first."""

    def __init__(self, victims: Collection[int]) -> None:
        super().__init__(64)
        self._victims = victims

    def shape_step(self, running: Collection[Sequence], now: float) -> StepShape:
        return StepShape(64, (), [(NO_LIMIT, seq) for seq in running])

    def victim(self, running: Iterable[Sequence], now: float) -> Sequence:
        running = list(running)
        named = [seq for seq in running if seq.seq_id in self._victims]
        return named[0] if named else super().victim(running, now)


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_who_cannot_start_without_another_gives_way_with_it(victim: int) -> None:
    house = Harness(num_blocks=9, max_num_batched_tokens=64)
    policy = house.scheduler._policy = LetsThemIn({victim})
    house.scheduler._waiting = policy.line
    house.add(make_request([50 + i for i in range(16)], max_tokens=8, ignore_eos=True))
    house.step()
    for tail in ([5], [5, 6], [5, 6, 7]):
        house.add(make_request([1, 2, *tail, 8], max_tokens=2, ignore_eos=True))
    plan, _ = house.step()
    preempted = {1: {1, 2, 3}, 2: {2, 3}, 3: {3}}[victim]
    assert set(plan.preempted_seq_ids) == preempted
    assert {item.seq_id for item in plan.scheduled} == {0, 1, 2, 3} - preempted
    house.run()
    assert_answers(house)
    assert house.kv.num_private_blocks == 0


def test_a_step_that_found_no_memory_is_made_again_without_the_largest() -> None:
    house = Harness()
    for tail in ([5, 5, 5, 5, 5], [6], [6, 7]):
        house.add(make_request([1, 2, 3, *tail], max_tokens=3, ignore_eos=True))
    plan = house.scheduler.schedule(0.0)
    assert [item.start for item in plan.scheduled] == [0, 3, 4]
    largest = plan.scheduled[:1]
    updates = house.scheduler.fail_step(type(plan)(plan.step_id, largest), "no memory")
    assert [update.seq.seq_id for update in updates] == [0]
    assert [seq.num_computed_tokens for seq in house.sequences[1:]] == [0, 0]
    assert [seq.num_cached_tokens for seq in house.sequences[1:]] == [0, 0]
    house.sequences.pop(0)
    house.run()
    assert_answers(house)
