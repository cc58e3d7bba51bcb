"""Random workloads on tiny pools with tiers below them: outputs are those of requests that ran alone.

The executor's next token is a hash of what the KV slots contain, so a block restored from the wrong place, too late or
half written would show. Disks that cannot be read and steps that fail are part of the weather.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.cache.tiers import BlockTiers
from headrace.core.request import FinishReason
from headrace.core.sequence import Sequence
from headrace.core.step import TransferKind
from tests.fakes import expected_output, make_request
from tests.scheduler.harness import EOS, Harness
from tests.scheduler.test_scheduler_properties import BLOCK_SIZE, VOCAB_SIZE, Arrival, arrivals, run_workload


@dataclass
class SwapEveryOther:
    """Swaps victims and lets them compute again in turn; ``pattern`` says which."""

    pattern: list[bool]

    def prefers_swap(self, seq: Sequence, block_size: int) -> bool:
        self.pattern.append(self.pattern.pop(0))
        return self.pattern[-1]


def longest(workload: list[Arrival]) -> int:
    return max(len(a.request.prompt_token_ids) + a.request.sampling.max_tokens for a in workload)


@settings(max_examples=700, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    workload=st.lists(arrivals(), min_size=2, max_size=8),
    spare_blocks=st.integers(0, 6),
    num_host_blocks=st.integers(1, 12),
    num_disk_blocks=st.integers(0, 12),
    max_num_seqs=st.integers(2, 5),
    extra_budget=st.integers(0, 16),
    policy=st.sampled_from(["fcfs", "priority", "slo"]),
    prefix_caching=st.sampled_from([True, True, False]),
    swaps=st.lists(st.booleans(), min_size=1, max_size=4),
    damaged=st.sets(st.integers(0, 11), max_size=3),
)
def test_outputs_are_those_of_sequences_that_were_never_preempted(
    workload,
    spare_blocks,
    num_host_blocks,
    num_disk_blocks,
    max_num_seqs,
    extra_budget,
    policy,
    prefix_caching,
    swaps,
    damaged,
):
    house = Harness(
        num_blocks=-(-longest(workload) // BLOCK_SIZE) + spare_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_budget,
        max_model_len=64,
        policy=policy,
        prefix_caching=prefix_caching,
        tiers=BlockTiers(num_host_blocks, num_disk_blocks),
        swap_choice=SwapEveryOther(swaps),
    )
    house.executor.damaged_disk_slots = damaged
    run_workload(house, workload)

    assert len(house.ended) == len(workload)
    for seq in house.sequences:
        output = seq.token_ids[seq.num_prompt_tokens :]
        alone = alone_output(seq)
        assert output == (alone[: len(output)] if seq.finish_reason is FinishReason.ABORT else alone)
    assert house.kv.num_private_blocks == 0
    assert not house.kv.tiers.host.held_slots


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    workload=st.lists(arrivals(), min_size=2, max_size=8),
    failing=st.sets(st.integers(2, 30), min_size=1, max_size=4),
    num_host_blocks=st.integers(2, 12),
    num_disk_blocks=st.integers(0, 8),
    prefix_caching=st.booleans(),
)
def test_what_a_failed_step_was_to_copy_is_never_read(
    workload, failing, num_host_blocks, num_disk_blocks, prefix_caching
):
    house = Harness(
        num_blocks=-(-longest(workload) // BLOCK_SIZE) + 1,
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_num_batched_tokens=12,
        max_model_len=64,
        prefix_caching=prefix_caching,
        tiers=BlockTiers(num_host_blocks, num_disk_blocks),
        swap_choice=SwapEveryOther([True]),
    )
    house.failing_steps = failing
    run_workload(house, workload)

    assert len(house.ended) == len(workload)
    for seq in house.sequences:
        output = seq.token_ids[seq.num_prompt_tokens :]
        alone = alone_output(seq)
        is_whole = seq.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert output == (alone if is_whole else alone[: len(output)])


def alone_output(seq: Sequence) -> list[int]:
    sampling = seq.request.sampling
    ends = frozenset() if sampling.ignore_eos else EOS
    return expected_output(seq.request.prompt_token_ids, sampling.max_tokens, VOCAB_SIZE, ends)


# -- by example --------------------------------------------------------------------------------------


def prompt(length: int, salt: int) -> list[int]:
    return [(7 * i + 13 * salt + 1) % VOCAB_SIZE for i in range(length)]


def kinds(house: Harness) -> list[TransferKind]:
    return [transfer.kind for plan in house.executor.plans for transfer in plan.transfers]


def test_a_preempted_sequence_takes_up_where_it_was_stopped():
    house = Harness(
        num_blocks=8, block_size=4, prefix_caching=False, tiers=BlockTiers(16), swap_choice=SwapEveryOther([True])
    )
    first = house.add(make_request(prompt(8, 1), arrival_time=1.0, max_tokens=20, ignore_eos=True))
    second = house.add(make_request(prompt(8, 2), arrival_time=2.0, max_tokens=20, ignore_eos=True))
    house.run()
    assert second.num_preemptions == 1
    assert {TransferKind.OFFLOAD, TransferKind.RESTORE} == set(kinds(house))
    computed = sum(len(item.token_ids) for plan in house.executor.plans for item in plan.scheduled)
    assert computed == first.num_tokens + second.num_tokens - 2, "every token but the last was computed just once"


def test_without_room_in_the_host_tier_it_is_computed_again():
    house = Harness(
        num_blocks=8, block_size=4, prefix_caching=False, tiers=BlockTiers(1), swap_choice=SwapEveryOther([True])
    )
    house.add(make_request(prompt(8, 1), arrival_time=1.0, max_tokens=20, ignore_eos=True))
    second = house.add(make_request(prompt(8, 2), arrival_time=2.0, max_tokens=20, ignore_eos=True))
    house.run()
    assert second.num_preemptions > 0
    assert kinds(house) == []
    assert second.token_ids[8:] == alone_output(second)


def test_an_evicted_prefix_is_found_in_the_host_tier():
    house = Harness(num_blocks=8, block_size=4, tiers=BlockTiers(8))
    house.add(make_request(prompt(17, 1), max_tokens=2))
    house.run()
    house.add(make_request(prompt(25, 2), max_tokens=2))
    house.run()
    again = house.add(make_request(prompt(17, 1), max_tokens=2, ignore_eos=True))
    house.run()
    assert again.num_cached_tokens == 16
    assert house.kv.stats.restored_tokens > 0
    assert again.token_ids[17:] == expected_output(prompt(17, 1), 2, VOCAB_SIZE)


def test_a_prefix_that_went_to_disk_comes_back_before_its_sequence_starts():
    house = Harness(num_blocks=8, block_size=4, tiers=BlockTiers(4, 16))
    for salt in (1, 2, 3):
        house.add(make_request(prompt(25, salt), max_tokens=2))
        house.run()
    again = house.add(make_request(prompt(25, 1), max_tokens=2, ignore_eos=True))
    plan, _ = house.step()
    assert plan.scheduled == ()
    assert {transfer.kind for transfer in plan.transfers} >= {TransferKind.FETCH}
    house.run()
    assert again.num_cached_tokens > 0
    assert again.token_ids[25:] == expected_output(prompt(25, 1), 2, VOCAB_SIZE)


def test_a_block_that_the_disk_does_not_give_back_is_computed_again():
    house = Harness(num_blocks=8, block_size=4, tiers=BlockTiers(4, 16))
    for salt in (1, 2, 3):
        house.add(make_request(prompt(25, salt), max_tokens=2))
        house.run()
    house.executor.damaged_disk_slots = set(range(16))
    again = house.add(make_request(prompt(25, 1), max_tokens=2, ignore_eos=True))
    house.run()
    assert house.kv.tiers.stats.failed_blocks > 0
    assert again.token_ids[25:] == expected_output(prompt(25, 1), 2, VOCAB_SIZE)
