"""The borders of drawing: where sums meet targets exactly and where filters meet ties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headrace.core.sampling import SamplingParams
from headrace.core.step import SampleSpec
from headrace.model.draw import DrawRules, draw

torch.set_num_threads(1)

CPU = torch.device("cpu")
ALMOST_ONE = 1.0 - 2.0**-53


def _drawn(logits: list[float], numbers: list[float], **params: Any) -> list[int]:
    """Tokens drawn from one row of logits with the given uniform numbers."""
    spec = SampleSpec(SamplingParams(**params), seed=0, position=0)
    rules = DrawRules.of([spec] * len(numbers), len(logits), CPU)
    rules.uniform.copy_(torch.tensor(numbers, dtype=torch.float64))
    return draw(torch.tensor([logits] * len(numbers)), rules).tolist()


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"min_p": 0.5}, {"top_p": 0.99}], ids=str)
def test_a_number_on_the_border_of_two_tokens_draws_the_second(params: dict[str, Any]) -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.0, -math.inf]
    numbers = [0.0, math.nextafter(0.5, 0.0), 0.5, ALMOST_ONE]
    assert _drawn(logits, numbers, **params) == [1, 1, 3, 3]


def test_no_number_draws_beyond_the_last_token_with_weight() -> None:
    for num_tokens in range(1, 200):
        assert _drawn([0.0] * num_tokens + [-math.inf] * 5, [ALMOST_ONE]) == [num_tokens - 1]


def test_top_p_keeps_no_token_after_its_share_is_exactly_reached() -> None:
    assert _drawn([0.0] * 4, [0.0, ALMOST_ONE], top_p=0.5) == [0, 1]
    assert _drawn([0.0] * 200, [0.0, ALMOST_ONE], top_p=0.5) == [0, 99]
    assert _drawn([0.0] * 200 + [-9.0], [0.0, ALMOST_ONE], top_k=200, top_p=0.25) == [0, 49]


def test_min_p_one_keeps_every_token_as_likely_as_the_likeliest() -> None:
    assert _drawn([0.0] * 3 + [-0.001], [ALMOST_ONE], min_p=1.0) == [2]
    assert _drawn([0.0] * 300 + [-0.001], [ALMOST_ONE], min_p=1.0) == [299]


def test_top_k_ignores_forbidden_tokens_in_its_count() -> None:
    logits = [-math.inf] * 100 + [0.0, 1.0, 2.0]
    assert _drawn(logits, [0.0, ALMOST_ONE], top_k=50) == [100, 102]
    assert _drawn(logits, [0.0, ALMOST_ONE], top_k=80) == [100, 102]


def test_numbers_draw_tokens_in_proportion_to_their_weights() -> None:
    logits = [math.log(probability) for probability in (0.1, 0.2, 0.3, 0.4)]
    numbers = [(i + 0.5) / 1000 for i in range(1000)]
    tokens = _drawn(logits, numbers)
    assert tokens == sorted(tokens)
    assert [tokens.count(token) for token in range(4)] == [100, 200, 300, 400]
