"""The flat arrays of a step against a flattening done one token at a time."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.forward_batch import ForwardBatch
from headrace.core.sampling import SamplingParams
from headrace.core.step import JoinedTokens, PromptLogprobSpec, SampleSpec, ScheduledSequence, StepPlan


def _scheduled(
    seq_id: int, token_ids: list[int], start: int, block_ids: list[int], samples: bool = False
) -> ScheduledSequence:
    sample = SampleSpec(SamplingParams(), seed=0, position=start + len(token_ids)) if samples else None
    return ScheduledSequence(seq_id, token_ids, start, np.array(block_ids, np.int32), sample)


def test_a_small_plan_is_flattened_as_on_paper() -> None:
    plan = StepPlan(
        step_id=1,
        scheduled=(
            _scheduled(7, [11, 12, 13], start=3, block_ids=[5, 2], samples=True),
            _scheduled(8, [21], start=0, block_ids=[9]),
            _scheduled(9, [31], start=8, block_ids=[1, 0, 3], samples=True),
        ),
    )
    batch = ForwardBatch.from_plan(plan, block_size=4)
    assert batch.input_ids.tolist() == [11, 12, 13, 21, 31]
    assert batch.positions.tolist() == [3, 4, 5, 0, 8]
    assert batch.slot_mapping.tolist() == [5 * 4 + 3, 2 * 4 + 0, 2 * 4 + 1, 9 * 4, 3 * 4]
    assert batch.query_start.tolist() == [0, 3, 4, 5]
    assert batch.seq_lens.tolist() == [6, 1, 9]
    assert batch.block_tables.tolist() == [[5, 2, 2], [9, 9, 9], [1, 0, 3]]
    assert batch.logit_rows.tolist() == [2, 4]
    assert batch.num_wanted.tolist() == [1, 0, 1]
    assert batch.wanting_all().num_wanted.tolist() == [3, 1, 1]
    assert batch.num_tokens == 5
    assert batch.num_sequences == 3


def test_joined_tokens_are_the_rows_of_those_who_compute_them_and_the_slots_of_those_who_join() -> None:
    joined = (JoinedTokens(7, 4, 6), JoinedTokens(8, 6, 7))
    plan = StepPlan(
        step_id=1,
        scheduled=(
            _scheduled(7, [11, 12, 13], start=3, block_ids=[5, 2]),
            msgspec.structs.replace(_scheduled(9, [31], start=7, block_ids=[1, 6]), joined=joined),
            _scheduled(8, [21, 22], start=6, block_ids=[5, 9], samples=True),
        ),
    )
    batch = ForwardBatch.from_plan(plan, block_size=4)
    assert batch.joined_rows.tolist() == [1, 2, 4]
    assert batch.joined_slots.tolist() == [6 * 4 + 0, 6 * 4 + 1, 6 * 4 + 2]
    assert batch.slot_mapping.tolist() == [5 * 4 + 3, 2 * 4, 2 * 4 + 1, 6 * 4 + 3, 9 * 4 + 2, 9 * 4 + 3]


def test_rows_are_wanted_from_the_first_on_whose_logits_are_asked_for() -> None:
    spec = PromptLogprobSpec(first_row=1, target_token_ids=(12, 13), num_top=0)
    asking = msgspec.structs.replace(_scheduled(7, [11, 12, 13, 14], 0, [5]), prompt_logprobs=spec)
    sampling = msgspec.structs.replace(_scheduled(8, [21, 22], 0, [6], samples=True), prompt_logprobs=spec)
    batch = ForwardBatch.from_plan(StepPlan(1, (asking, sampling)), block_size=16)
    assert batch.num_wanted.tolist() == [3, 1]


def test_every_array_is_int32() -> None:
    batch = ForwardBatch.from_plan(StepPlan(1, (_scheduled(1, [1, 2], 0, [0], samples=True),)), block_size=16)
    arrays = (
        batch.input_ids,
        batch.positions,
        batch.slot_mapping,
        batch.query_start,
        batch.seq_lens,
        batch.block_tables,
        batch.logit_rows,
        batch.num_wanted,
        batch.joined_rows,
        batch.joined_slots,
    )
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_a_step_in_which_nobody_samples_has_no_logit_rows() -> None:
    batch = ForwardBatch.from_plan(StepPlan(1, (_scheduled(1, [1, 2], 0, [0]),)), block_size=16)
    assert batch.logit_rows.tolist() == []


@st.composite
def _plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    block_size = draw(st.integers(1, 5))
    free = draw(st.permutations(range(60)))
    scheduled = []
    for seq_id in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, 12))
        token_ids = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
        num_blocks = -(-(start + len(token_ids)) // block_size) + draw(st.integers(0, 2))
        block_ids = [free[(seq_id * 20 + i) % 60] for i in range(num_blocks)]
        scheduled.append(_scheduled(seq_id, token_ids, start, block_ids, draw(st.booleans())))
    return StepPlan(1, tuple(scheduled)), block_size


@settings(max_examples=150, deadline=None)
@given(_plans())
def test_any_plan_is_flattened_like_one_token_at_a_time(case: tuple[StepPlan, int]) -> None:
    plan, block_size = case
    batch = ForwardBatch.from_plan(plan, block_size)
    row = 0
    logit_rows = []
    for index, item in enumerate(plan.scheduled):
        assert batch.query_start[index] == row
        assert batch.seq_lens[index] == item.start + len(item.token_ids)
        assert batch.block_tables[index, : len(item.block_ids)].tolist() == item.block_ids.tolist()
        assert (batch.block_tables[index, len(item.block_ids) :] == item.block_ids[-1]).all()
        for offset, token_id in enumerate(item.token_ids):
            position = item.start + offset
            assert batch.input_ids[row] == token_id
            assert batch.positions[row] == position
            assert (
                batch.slot_mapping[row] == item.block_ids[position // block_size] * block_size + position % block_size
            )
            row += 1
        if item.sample is not None:
            logit_rows.append(row - 1)
    assert batch.query_start[-1] == batch.num_tokens == row
    assert batch.logit_rows.tolist() == logit_rows
