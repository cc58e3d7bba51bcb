"""The scheduling rule, one decision at a time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.core.program_place import ProgramPlace
from headrace.core.request import FinishReason
from headrace.core.sequence import SequenceStatus
from tests.fakes import expected_output, make_request
from tests.scheduler.harness import EOS, Harness


def output_of(seq):
    return seq.token_ids[seq.num_prompt_tokens :]


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * i + 13 * salt + 1) % 50 for i in range(length)]


def test_a_request_alone_gives_what_the_executor_answers_on_paper():
    house = Harness()
    seq = house.add(make_request(prompt(10), max_tokens=20, ignore_eos=True))
    house.run()
    assert output_of(seq) == expected_output(prompt(10), 20, 50)
    assert seq.finish_reason is FinishReason.LENGTH


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    house = Harness(max_num_batched_tokens=16)
    house.add(make_request(prompt(40), max_tokens=1))
    chunks = [[len(item.token_ids) for item in house.step()[0].scheduled] for _ in range(3)]
    assert chunks == [[16], [16], [8]]


def test_running_streams_get_a_token_every_step_while_a_long_prompt_is_computed():
    house = Harness(max_num_batched_tokens=16)
    streams = [house.add(make_request(prompt(4, i), max_tokens=30, ignore_eos=True)) for i in range(4)]
    house.step()
    house.add(make_request(prompt(80, 9), max_tokens=2))
    for _ in range(6):
        before = [seq.num_tokens for seq in streams]
        house.step()
        assert [seq.num_tokens for seq in streams] == [count + 1 for count in before]


def test_only_the_chunk_that_reaches_the_end_samples():
    house = Harness(max_num_batched_tokens=16)
    house.add(make_request(prompt(20), max_tokens=1))
    first, _ = house.step()
    second, _ = house.step()
    assert first.scheduled[0].sample is None
    assert second.scheduled[0].sample is not None
    assert second.scheduled[0].sample.position == 20


def test_waiting_requests_start_in_order_of_arrival():
    house = Harness(max_num_seqs=1)
    late = house.add(make_request(prompt(4, 1), arrival_time=2.0, max_tokens=2))
    early = house.add(make_request(prompt(4, 2), arrival_time=1.0, max_tokens=2))
    plan, _ = house.step()
    assert [item.seq_id for item in plan.scheduled] == [early.seq_id]
    assert late.status is SequenceStatus.WAITING


def test_the_priority_policy_starts_lower_priorities_first():
    house = Harness(max_num_seqs=1, policy="priority")
    house.add(make_request(prompt(4, 1), arrival_time=1.0, priority=5, max_tokens=2))
    urgent = house.add(make_request(prompt(4, 2), arrival_time=2.0, priority=-1, max_tokens=2))
    plan, _ = house.step()
    assert [item.seq_id for item in plan.scheduled] == [urgent.seq_id]


def test_when_blocks_run_out_the_latest_arrival_gives_way_and_still_finishes_unchanged():
    house = Harness(num_blocks=8, block_size=4)
    first = house.add(make_request(prompt(8, 1), arrival_time=1.0, max_tokens=20, ignore_eos=True))
    second = house.add(make_request(prompt(8, 2), arrival_time=2.0, max_tokens=20, ignore_eos=True))
    house.run()
    assert first.num_preemptions == 0
    assert second.num_preemptions > 0
    assert output_of(first) == expected_output(prompt(8, 1), 20, 50)
    assert output_of(second) == expected_output(prompt(8, 2), 20, 50)


def test_a_preempted_sequence_is_named_in_the_plan():
    house = Harness(num_blocks=8, block_size=4)
    house.add(make_request(prompt(8, 1), arrival_time=1.0, max_tokens=20, ignore_eos=True))
    second = house.add(make_request(prompt(8, 2), arrival_time=2.0, max_tokens=20, ignore_eos=True))
    named: set[int] = set()
    while house.scheduler.has_work:
        named.update(house.step()[0].preempted_seq_ids)
    assert named == {second.seq_id}


def test_nobody_overtakes_a_request_that_waits_for_blocks():
    house = Harness(num_blocks=10, block_size=4, max_num_batched_tokens=64)
    house.add(make_request(prompt(20, 1), arrival_time=1.0, max_tokens=8, ignore_eos=True))
    house.step()
    large = house.add(make_request(prompt(30, 2), arrival_time=2.0, max_tokens=4, ignore_eos=True))
    small = house.add(make_request(prompt(4, 3), arrival_time=3.0, max_tokens=4, ignore_eos=True))
    house.step()
    assert large.status is SequenceStatus.WAITING
    assert small.status is SequenceStatus.WAITING
    house.run()
    assert large.first_scheduled_time <= small.first_scheduled_time


def test_a_shared_prefix_is_found_in_the_cache():
    house = Harness()
    house.add(make_request(prompt(16), max_tokens=1))
    house.run()
    second = house.add(make_request([*prompt(16), 3, 4], max_tokens=1))
    house.run()
    assert second.num_cached_tokens == 16
    assert output_of(second) == expected_output([*prompt(16), 3, 4], 1, 50)


def test_at_least_one_token_of_a_fully_cached_prompt_is_computed():
    house = Harness()
    house.add(make_request(prompt(16), max_tokens=1))
    house.run()
    again = house.add(make_request(prompt(16), max_tokens=1))
    house.run()
    assert again.num_cached_tokens == 15
    assert output_of(again) == expected_output(prompt(16), 1, 50)


def test_requests_that_arrive_together_compute_a_common_prefix_once():
    house = Harness(num_blocks=64, max_num_batched_tokens=64)
    sequences = [house.add(make_request([*prompt(32), i], max_tokens=2, ignore_eos=True)) for i in range(6)]
    house.run()
    assert sequences[0].num_cached_tokens == 0
    assert [seq.num_cached_tokens for seq in sequences[1:]] == [32] * 5
    assert sum(plan.num_tokens for plan in house.executor.plans) < 2 * 33 + 6 * 8


def test_salted_requests_share_nothing():
    house = Harness()
    house.add(make_request(prompt(16), cache_salt="a", max_tokens=1))
    house.run()
    other = house.add(make_request(prompt(16), cache_salt="b", max_tokens=1))
    house.run()
    assert other.num_cached_tokens == 0


def test_end_of_sequence_stops_and_ignore_eos_does_not():
    house = Harness()
    length = len(expected_output(prompt(4), 60, 50, EOS))
    assert length < 60, "choose a prompt whose output holds the end-of-sequence token"
    stopped = house.add(make_request(prompt(4), max_tokens=60))
    house.run()
    ignored = house.add(make_request(prompt(4), max_tokens=60, ignore_eos=True))
    house.run()
    assert (stopped.num_output_tokens, stopped.finish_reason) == (length, FinishReason.STOP)
    assert (ignored.num_output_tokens, ignored.finish_reason) == (60, FinishReason.LENGTH)


def test_a_stop_token_ends_the_sequence_and_is_named():
    house = Harness()
    answer = expected_output(prompt(5), 10, 50)
    seq = house.add(make_request(prompt(5), max_tokens=10, stop_token_ids=(answer[4],), ignore_eos=True))
    house.run()
    assert output_of(seq) == answer[: answer.index(answer[4]) + 1]
    assert (seq.finish_reason, seq.stop_reason) == (FinishReason.STOP, answer[4])


def test_stop_tokens_are_suppressed_until_min_tokens_are_out():
    house = Harness()
    house.add(make_request(prompt(4), max_tokens=8, min_tokens=3, stop_token_ids=(9,), ignore_eos=True))
    suppressed = []
    while house.scheduler.has_work:
        plan, _ = house.step()
        suppressed.append(plan.scheduled[0].sample.suppressed_token_ids)
    assert suppressed[:3] == [(0, 9)] * 3
    assert set(suppressed[3:]) == {()}


def test_the_context_length_ends_a_sequence():
    house = Harness(max_model_len=24)
    seq = house.add(make_request(prompt(20), max_tokens=None, ignore_eos=True))
    house.run()
    assert (seq.num_tokens, seq.finish_reason) == (24, FinishReason.LENGTH)


def test_prompt_logprobs_cover_each_position_once_in_any_chunking():
    for budget in (1, 3, 16, 64):
        house = Harness(max_num_seqs=1, max_num_batched_tokens=budget)
        house.add(make_request(prompt(21), max_tokens=1))
        house.run()  # a cached prefix must not shorten what is reported
        seq = house.add(make_request(prompt(21), max_tokens=3, prompt_logprobs=0))
        known = []
        while house.scheduler.has_work:
            for update in house.step()[1]:
                known.extend(update.prompt_logprobs)
        assert known[0] is None
        assert [entry.token_id for entry in known[1:]] == seq.token_ids[1:21]


def test_prompt_logprobs_from_a_position_on_leave_what_lies_before_to_the_cache():
    for budget in (3, 64):
        house = Harness(max_num_seqs=1, max_num_batched_tokens=budget, block_size=4)
        house.add(make_request(prompt(21), max_tokens=1))
        house.run()
        seq = house.add(make_request(prompt(21), max_tokens=1, prompt_logprobs=0, prompt_logprobs_start=18))
        known = []
        while house.scheduler.has_work:
            for update in house.step()[1]:
                known.extend(update.prompt_logprobs)
        assert [entry.token_id for entry in known] == seq.token_ids[18:21]
        assert seq.num_cached_tokens == 17  # the tokens that owe nothing


def test_prompt_logprobs_are_not_repeated_after_preemption():
    house = Harness(num_blocks=8, block_size=4)
    house.add(make_request(prompt(8, 1), arrival_time=1.0, max_tokens=20, ignore_eos=True))
    house.add(make_request(prompt(8, 2), arrival_time=2.0, max_tokens=20, ignore_eos=True, prompt_logprobs=0))
    known = []
    while house.scheduler.has_work:
        for update in house.step()[1]:
            known.extend(update.prompt_logprobs)
    assert house.sequences[1].num_preemptions > 0
    assert len(known) == 8


def test_a_failed_row_ends_its_sequence_alone():
    house = Harness()
    good = house.add(make_request(prompt(6, 1), max_tokens=5, ignore_eos=True))
    bad = house.add(make_request(prompt(6, 2), max_tokens=5, ignore_eos=True))
    house.executor.fail_seq_ids.add(bad.seq_id)
    house.run()
    assert bad.finish_reason is FinishReason.ERROR
    assert output_of(good) == expected_output(prompt(6, 1), 5, 50)
    assert house.kv.num_private_blocks == 0


@pytest.mark.parametrize("steps_before", range(8))
def test_an_abort_in_any_state_frees_everything(steps_before):
    house = Harness(num_blocks=8, block_size=4, max_num_batched_tokens=4, max_num_seqs=2)
    sequences = [house.add(make_request(prompt(9, i), arrival_time=float(i), max_tokens=9)) for i in range(4)]
    for _ in range(steps_before):
        house.step()
    for seq in sequences:
        house.abort(seq)
        house.abort(seq)
    assert not house.scheduler.has_work
    assert house.kv.num_private_blocks == 0
    assert house.kv.check() == []
    assert len(house.ended) == 4


def test_equal_workloads_give_equal_plans():
    def digests():
        house = Harness(num_blocks=16, block_size=4)
        for i in range(6):
            house.add(make_request(prompt(9, i % 3), arrival_time=float(i), max_tokens=12))
        house.run()
        return [plan.digest() for plan in house.executor.plans]

    assert digests() == digests()


def test_a_program_that_has_begun_is_finished_before_newcomers_start():
    house = Harness(max_num_seqs=1)
    house.add(make_request(prompt(4, 1), "running", arrival_time=1.0, max_tokens=3, ignore_eos=True))
    house.step()
    newcomer = house.add(make_request(prompt(4, 2), "newcomer", arrival_time=2.0, max_tokens=1))
    call = make_request(prompt(4, 3), "call", arrival_time=3.0, max_tokens=1)
    later_call = house.add(replace(call, program=ProgramPlace("p", began=0.5)))
    house.run()
    assert later_call.first_scheduled_time < newcomer.first_scheduled_time
