"""A sequence counts its own tokens, and a block table grows like a list but reads like an array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import BlockTable, Sequence, SequenceStatus, sequence_seed


def make_sequence(prompt: list[int], index: int = 0) -> Sequence:
    request = Request(request_id="r", prompt_token_ids=prompt, sampling=SamplingParams(), seed=42, arrival_time=0.0)
    return Sequence(7, request, index, frozenset({2}))


def test_a_new_sequence_has_its_whole_prompt_pending() -> None:
    seq = make_sequence([5, 6, 7])
    assert (seq.num_tokens, seq.num_pending_tokens, seq.num_output_tokens) == (3, 3, 0)
    assert seq.status is SequenceStatus.WAITING
    assert not seq.is_finished


def test_counts_follow_the_tokens() -> None:
    seq = make_sequence([5, 6, 7])
    seq.num_computed_tokens = 3
    seq.token_ids.append(8)
    assert (seq.num_tokens, seq.num_pending_tokens, seq.num_output_tokens) == (4, 1, 1)
    seq.status = SequenceStatus.FINISHED
    assert seq.is_finished


def test_a_sequence_does_not_share_its_tokens_with_the_request() -> None:
    seq = make_sequence([5])
    seq.token_ids.append(6)
    assert seq.request.prompt_token_ids == [5]


def test_siblings_have_different_seeds_and_the_first_keeps_the_requests() -> None:
    seeds = [make_sequence([1], index).seed for index in range(16)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 16


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 15))
def test_a_seed_fits_in_64_bits(request_seed: int, index: int) -> None:
    assert 0 <= sequence_seed(request_seed, index) < 1 << 64


def test_a_sequence_shows_where_it_is() -> None:
    assert repr(make_sequence([1, 2])) == "Sequence(7, r#0, waiting, tokens=2+0, computed=0, blocks=0)"


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), max_size=9))
def test_a_block_table_holds_what_was_added_in_order(parts: list[list[int]]) -> None:
    table = BlockTable(parts[0] if parts else ())
    for part in parts[1:]:
        table.extend(part)
    expected = [block_id for part in parts for block_id in part]
    assert table.ids.tolist() == expected
    assert len(table) == len(expected)
    assert table.ids.dtype == np.int32


def test_entries_can_be_replaced_and_all_can_go() -> None:
    table = BlockTable(range(5))
    table.replace(1, [11, 12])
    assert table.ids.tolist() == [0, 11, 12, 3, 4]
    table.clear()
    assert len(table) == 0
    table.extend([9])
    assert table.ids.tolist() == [9]
