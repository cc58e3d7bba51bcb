"""Ranking against sorting in Python, with many equal logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headrace.model.logprobs import token_logprobs
from headrace.model.ranking import top_ranked

torch.set_num_threads(1)


def _sorted_ids(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


@pytest.mark.parametrize("num_values", [2, 30, 10_000])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_the_first_tokens_are_those_of_a_sort_by_logit_then_id(num_values: int, count: int) -> None:
    generator = np.random.default_rng(num_values)
    logits = torch.from_numpy(generator.integers(0, num_values, size=(6, 700)).astype(np.float32))
    values, ids = top_ranked(logits, count)
    for row, row_values, row_ids in zip(logits.tolist(), values.tolist(), ids.tolist(), strict=True):
        assert row_ids == _sorted_ids(row)[:count]
        assert row_values == [row[token] for token in row_ids]


def test_no_more_tokens_are_reported_than_the_vocabulary_has() -> None:
    _, ids = top_ranked(torch.tensor([[1.0, 3.0, 2.0]]), 20)
    assert ids.tolist() == [[1, 2, 0]]


def test_logprobs_of_rows_with_different_wishes() -> None:
    logits = torch.tensor([[0.0, math.log(2.0), 0.0], [0.0, 0.0, 0.0], [5.0, 5.0, -math.inf]])
    first, second, third = token_logprobs(logits, [0, 2, 1], [2, 0, 1])
    assert (first.token_id, first.rank, first.logprob) == (0, 2, pytest.approx(math.log(0.25)))
    assert [token for token, _ in first.top] == [1, 0]
    assert [logprob for _, logprob in first.top] == pytest.approx([math.log(0.5), math.log(0.25)])
    assert (second.rank, second.logprob, second.top) == (1, pytest.approx(math.log(1 / 3)), ())
    assert (third.rank, third.logprob, third.top[0][0]) == (1, pytest.approx(math.log(0.5)), 0)
