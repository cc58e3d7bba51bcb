"""The SLO policy, one promise at a time, on a machine whose costs are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headrace.core.errors import DeadlineExceeded, Overloaded
from headrace.core.request import FinishReason
from headrace.core.sequence import Sequence, SequenceStatus
from headrace.core.service_level import STANDARD_CLASSES, ServiceLevel
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.scheduler.admission import MAX_LATE_TOKENS
from headrace.scheduler.cost_model import StepCosts, StepFeatures
from headrace.scheduler.pace import PACE
from headrace.scheduler.step_budget import MIN_PREFILL_TOKENS
from tests.fakes import ContentExecutor, make_request
from tests.scheduler.harness import Harness

MACHINE = StepCosts(fixed_s=0.010, num_free_tokens=0, token_s=1e-4, decode_s=1e-4)
"""10 ms a step and 0.1 ms a token."""

INTERACTIVE = STANDARD_CLASSES["interactive"]
BATCH = STANDARD_CLASSES["batch"]


class Machine(ContentExecutor):
    """Takes as long as its costs say."""

    def __init__(self, num_blocks: int, block_size: int, costs: StepCosts) -> None:
        super().__init__(num_blocks, block_size)
        self._costs = costs

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        return replace(super().execute(plan, token_mask), elapsed_s=self._costs.predict(StepFeatures.of(plan)))


def house_of(costs: StepCosts = MACHINE, **settings: object) -> Harness:
    defaults = {"num_blocks": 4096, "block_size": 16, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    house = Harness(policy="slo", costs=costs, max_model_len=16384, **(defaults | settings))  # type: ignore[arg-type]
    house.executor = Machine(house.kv.num_blocks, 16, costs)
    return house


def add(house: Harness, num_tokens: int, level: ServiceLevel = ServiceLevel(), **fields: object) -> Sequence:  # noqa: B008
    """A request that arrives now, with a prompt nobody else has."""
    number = len(house.sequences)
    prompt = [number % 50, *[(number * 31 + i * 7) % 50 for i in range(num_tokens - 1)]]
    fields = {"max_tokens": 100, "ignore_eos": True, "arrival_time": house.clock.now()} | fields
    return house.add(make_request(prompt, service_level=level, **fields))  # type: ignore[arg-type]


def step(house: Harness) -> StepPlan:
    return house.step()[0]


def prefill_tokens(plan: StepPlan) -> int:
    return StepFeatures.of(plan).num_new_tokens


def test_a_stream_on_pace_gives_prompts_exactly_the_time_of_one_pace():
    house = house_of()
    add(house, 20, INTERACTIVE)
    step(house)
    add(house, 4000)
    plan = step(house)
    predicted = MACHINE.predict(StepFeatures.of(plan))
    assert predicted == pytest.approx(PACE * 0.033, abs=2e-4)


def test_credit_buys_a_longer_step_and_is_not_overdrawn():
    house = house_of()
    stream = add(house, 20, INTERACTIVE)
    for _ in range(9):
        step(house)  # 10 ms a token where 33 are allowed
    add(house, 8000)
    lengths = [MACHINE.predict(StepFeatures.of(step(house))) for _ in range(8)]
    assert lengths[0] > 0.1
    assert max(lengths) <= 0.25 + 2e-4
    elapsed = house.clock.now() - stream.first_token_time
    assert elapsed / (stream.num_output_tokens - 1) <= 0.033


def test_without_targets_a_step_takes_what_the_config_allows():
    house = house_of()
    add(house, 20)
    step(house)
    add(house, 4000)
    assert step(house).num_tokens == 2048


def test_however_late_the_streams_are_a_prompt_moves_on():
    house = house_of(costs=StepCosts(fixed_s=0.010, num_free_tokens=0, token_s=5e-5, decode_s=1e-4))
    for _ in range(4):
        add(house, 20, INTERACTIVE)
    step(house)
    add(house, 1000)
    house.clock.advance(5.0)
    assert prefill_tokens(step(house)) == MIN_PREFILL_TOKENS


DEAR = StepCosts(fixed_s=0.010, num_free_tokens=0, token_s=1e-3, decode_s=1e-4)
"""A millisecond a token: a prompt's least progress must not keep streams late."""


def test_where_tokens_are_dear_late_streams_wait_a_tenth_of_a_pace_for_a_prompt_and_no_more():
    house = house_of(costs=DEAR)
    add(house, 20, INTERACTIVE)
    step(house)
    add(house, 1000)
    house.clock.advance(5.0)
    assert prefill_tokens(step(house)) == int(0.1 * PACE * 0.033 / DEAR.token_s)


def test_a_stream_a_little_behind_is_back_on_pace_within_a_few_steps():
    house = house_of()
    stream = add(house, 20, INTERACTIVE)
    step(house)
    add(house, 4000)
    house.clock.advance(PACE * 0.033 + 0.010)
    plan = step(house)
    assert prefill_tokens(plan) > MIN_PREFILL_TOKENS
    assert MACHINE.predict(StepFeatures.of(plan)) < PACE * 0.033
    for _ in range(12):
        step(house)
    behind_s = house.clock.now() - stream.first_token_time - PACE * 0.033 * stream.num_output_tokens
    assert behind_s < 0.002


def test_streams_that_are_behind_stand_back_for_a_first_token_that_would_miss():
    house = house_of()
    add(house, 20, INTERACTIVE)
    step(house)
    urgent = add(house, 300, INTERACTIVE)
    house.clock.advance(0.43)
    plan = step(house)
    assert prefill_tokens(plan) == 300
    assert urgent.num_output_tokens == 1


def test_a_short_urgent_prompt_interrupts_a_long_one_with_time_to_spare():
    house = house_of(max_num_batched_tokens=256)
    long = add(house, 4000, BATCH)
    step(house)
    short = add(house, 200, INTERACTIVE)
    plan = step(house)
    assert plan.scheduled[0].seq_id == short.seq_id
    assert len(plan.scheduled[0].token_ids) == 200
    assert long.num_computed_tokens == 256 + 56


def test_a_cached_prefix_goes_first_among_the_equally_urgent():
    house = house_of(max_num_seqs=1)
    prompt = [i % 50 for i in range(200)]
    house.add(make_request(prompt, max_tokens=1))
    house.run()
    now = house.clock.now()
    other = house.add(make_request([49] * 220, max_tokens=4, arrival_time=now))
    cached = house.add(make_request([*prompt, 1, 2], max_tokens=4, arrival_time=now))
    step(house)
    assert cached.status is SequenceStatus.RUNNING
    assert other.status is SequenceStatus.WAITING


def test_the_answers_of_one_request_begin_in_order():
    house = house_of(max_num_seqs=1)
    request = make_request([3] * 100, max_tokens=2, ignore_eos=True)
    sequences = [house.add(request, index) for index in range(3)]
    house.run()
    assert [seq.first_token_time for seq in sequences] == sorted(seq.first_token_time for seq in sequences)


def test_priority_moves_a_request_by_a_second_a_step():
    house = house_of(max_num_seqs=1)
    early = add(house, 20, arrival_time=0.0)
    urgent = add(house, 20, arrival_time=2.0, priority=-3)
    step(house)
    assert urgent.status is SequenceStatus.RUNNING
    assert early.status is SequenceStatus.WAITING


def test_a_first_token_that_cannot_come_in_time_is_refused_at_the_door():
    house = house_of(max_num_batched_tokens=512)
    for _ in range(20):
        add(house, 2000, INTERACTIVE)
    for _ in range(3):
        step(house)
    late = Sequence(999, make_request([1] * 2000, service_level=INTERACTIVE, arrival_time=house.clock.now()), 0, EOS)
    with pytest.raises(Overloaded, match=r"first token would come in about .* requested within 0.5 s") as caught:
        house.scheduler.admit(late, house.clock.now())
    assert caught.value.retry_after_s >= 1.0


EOS = frozenset({0})


def arrival(house: Harness, num_tokens: int, level: ServiceLevel) -> Sequence:
    request = make_request([1] * num_tokens, service_level=level, arrival_time=house.clock.now())
    return Sequence(10_000 + num_tokens, request, 0, EOS)


def crowded_house() -> tuple[Harness, Sequence]:
    """Streams run; a prompt of 2,600 tokens waits, then eight of 200: what comes now would miss by a little."""
    house = house_of(max_num_batched_tokens=512)
    add(house, 20, INTERACTIVE)
    for _ in range(3):
        step(house)
    long = add(house, 2600, INTERACTIVE)
    for _ in range(8):
        add(house, 200, INTERACTIVE)
    return house, long


def test_under_pressure_the_largest_prompt_that_has_not_begun_is_refused_for_the_sake_of_a_small_one():
    house, long = crowded_house()
    house.scheduler.admit(arrival(house, 200, INTERACTIVE), house.clock.now())
    ((ended, error),) = house.scheduler.end_overdue(house.clock.now())
    assert ended is long
    assert isinstance(error, Overloaded)
    assert "its 2600 prompt tokens are the most" in str(error)
    assert house.scheduler.num_waiting == 8


def test_nobody_gives_way_to_a_larger_prompt():
    house, _ = crowded_house()
    with pytest.raises(Overloaded):
        house.scheduler.admit(arrival(house, 2700, INTERACTIVE), house.clock.now())
    assert house.scheduler.end_overdue(house.clock.now()) == []


def test_nobody_is_refused_for_one_that_would_miss_all_the_same():
    house, _ = crowded_house()
    for _ in range(40):
        add(house, 200, INTERACTIVE)
    with pytest.raises(Overloaded):
        house.scheduler.admit(arrival(house, 200, INTERACTIVE), house.clock.now())
    assert house.scheduler.end_overdue(house.clock.now()) == []


def test_nobody_gives_way_twice_before_it_has_gone():
    house, long = crowded_house()
    house.scheduler.admit(arrival(house, 200, INTERACTIVE), house.clock.now())
    house.scheduler.admit(arrival(house, 201, INTERACTIVE), house.clock.now())
    assert [seq for seq, _ in house.scheduler.end_overdue(house.clock.now())] == [long]


def test_with_an_empty_machine_nothing_is_refused():
    house = house_of()
    step(house) if house.scheduler.has_work else None
    seq = Sequence(0, make_request([1] * 4000, service_level=INTERACTIVE), 0, EOS)
    house.scheduler.admit(seq, 0.0)


def test_nobody_is_refused_on_a_guess():
    house = Harness(policy="slo", num_blocks=1024, block_size=16, max_model_len=8192)
    for number in range(8):
        house.add(make_request([number] * 1000, service_level=INTERACTIVE, max_tokens=2))
    seq = Sequence(99, make_request([1] * 1000, service_level=INTERACTIVE), 0, EOS)
    house.scheduler.admit(seq, 0.4)
    assert house.scheduler.end_overdue(0.49) == []


def test_one_that_waited_too_long_is_refused_when_that_is_certain():
    house = house_of(max_num_seqs=1)
    add(house, 20)
    step(house)
    waiting = add(house, 1000, INTERACTIVE)
    house.clock.advance(0.41)  # 0.1 s of work is left to do
    ((ended, error),) = house.scheduler.end_overdue(house.clock.now())
    assert ended is waiting
    assert isinstance(error, Overloaded)
    assert waiting.finish_reason is FinishReason.ERROR
    assert house.scheduler.num_waiting == 0


def test_one_that_may_be_late_waits_on_and_is_served_from_what_is_left():
    house = house_of(max_num_seqs=1)
    running = add(house, 20, max_tokens=3)
    step(house)
    patient = add(house, 1000, ServiceLevel(ttft_s=0.2, may_be_late=True))
    house.clock.advance(0.5)
    other = add(house, 20, ServiceLevel(ttft_s=20.0), max_tokens=2)
    assert house.scheduler.end_overdue(house.clock.now()) == []
    while not running.is_finished:
        step(house)
    step(house)
    assert other.status is SequenceStatus.RUNNING
    house.run()
    assert patient.finish_reason is FinishReason.LENGTH


def test_what_may_be_late_is_bounded_in_tokens():
    house = house_of(max_num_batched_tokens=64)
    level = ServiceLevel(ttft_s=30.0, may_be_late=True)
    house.scheduler.admit(Sequence(0, make_request([1] * 9000, service_level=level), 0, EOS), 0.0)
    for number in range(MAX_LATE_TOKENS // 8000 + 1):
        house.add(make_request([number] * 8000, service_level=level, max_tokens=1))
    with pytest.raises(Overloaded, match=f"at most {MAX_LATE_TOKENS}"):
        house.scheduler.admit(Sequence(999, make_request([1] * 8000, service_level=level), 0, EOS), 0.0)


@pytest.mark.parametrize("policy", ["slo", "fcfs", "priority"])
def test_a_deadline_ends_a_request_wherever_it_is_and_frees_its_blocks(policy):
    house = Harness(policy=policy, max_num_seqs=1)
    running = house.add(make_request([1] * 8, service_level=ServiceLevel(deadline_s=1.0), max_tokens=50))
    waiting = house.add(make_request([2] * 8, service_level=ServiceLevel(deadline_s=0.5), max_tokens=50))
    house.step()
    house.clock.advance(0.6)
    ((ended, error),) = house.scheduler.end_overdue(house.clock.now())
    assert ended is waiting
    assert isinstance(error, DeadlineExceeded)
    house.clock.advance(0.6)
    ((ended, error),) = house.scheduler.end_overdue(house.clock.now())
    assert ended is running
    assert "within its 1 s" in error.message
    assert house.kv.num_private_blocks == 0
    assert not house.scheduler.has_work


def test_finished_requests_with_distant_deadlines_are_not_kept():
    house = Harness(policy="slo", max_num_seqs=4)
    for _ in range(300):
        house.add(make_request([1, 2], service_level=ServiceLevel(deadline_s=86400.0), max_tokens=1))
        house.run()
    assert len(house.scheduler._deadlines._heap) < 100


def test_the_victim_is_of_the_loosest_tier_and_never_the_first_to_have_come():
    house = house_of(num_blocks=34, max_num_batched_tokens=512)
    first = add(house, 100, BATCH, arrival_time=0.0, max_tokens=300)
    interactive = add(house, 100, INTERACTIVE, arrival_time=0.001, max_tokens=300)
    batch = add(house, 100, BATCH, arrival_time=0.002, max_tokens=300)
    while not any(seq.num_preemptions for seq in house.sequences):
        step(house)
    assert batch.num_preemptions == 1
    assert first.num_preemptions == interactive.num_preemptions == 0


def test_room_is_kept_for_what_running_sequences_are_expected_to_generate():
    house = house_of(num_blocks=26, max_num_batched_tokens=512)
    for _ in range(3):
        add(house, 100, max_tokens=100)
    house.run()
    assert all(seq.num_preemptions == 0 for seq in house.sequences)


def test_streams_that_would_break_the_pace_of_all_are_not_started():
    house = house_of()
    for _ in range(40):
        add(house, 2, ServiceLevel(tpot_s=0.013))
    for _ in range(30):
        step(house)
    running = sum(seq.status is SequenceStatus.RUNNING for seq in house.sequences)
    assert MACHINE.decodes_s(running, 0) <= 0.013
    assert running >= 5


def test_a_target_no_step_can_meet_does_not_make_everybody_wait():
    house = house_of()
    for _ in range(8):
        add(house, 20, ServiceLevel(tpot_s=0.001), max_tokens=20)
    for _ in range(4):
        step(house)
    assert sum(seq.status is SequenceStatus.RUNNING for seq in house.sequences) >= 4


def test_no_target_is_no_deadline():
    assert ServiceLevel().ttft_s == math.inf
