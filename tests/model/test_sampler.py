"""The sampler against its definition, its distribution, and its independence of the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.core.sampled_tokens import NO_TOKEN, SampledTokens
from headrace.core.sampling import SamplingParams
from headrace.core.step import SampleSpec
from headrace.model.sampler import Sampler
from tests.model.reference_sampler import reference_row
from tests.model.sample_specs import any_spec, bitmask

torch.set_num_threads(1)

VOCAB = 200


def _spec(seed: int = 7, position: int = 3, **params: Any) -> SampleSpec:
    return SampleSpec(params=SamplingParams(**params), seed=seed, position=position)


def _logits(num_rows: int, vocab_size: int = VOCAB, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy((generator.normal(size=(num_rows, vocab_size)) * scale).astype(np.float32))


def _sample(logits: torch.Tensor, specs: list[SampleSpec], token_mask: np.ndarray | None = None) -> SampledTokens:
    return Sampler(logits.shape[1]).sample(logits, specs, token_mask)


def _expected(logits: torch.Tensor, specs: list[SampleSpec]) -> list[int]:
    rows = [reference_row(row, spec).token_id for row, spec in zip(logits.numpy(), specs, strict=True)]
    return [NO_TOKEN if token is None else token for token in rows]


# -- each parameter against the definition ---------------------------------------------------------------

PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 63},
    {"top_k": 64},
    {"top_k": 150},
    {"top_k": 10_000},
    {"top_k": -1},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999999, "temperature": 10.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 0.001, "temperature": 10.0},
    {"top_k": 20, "top_p": 0.7, "min_p": 0.02, "temperature": 1.5},
    {"top_k": 120, "top_p": 0.99, "temperature": 20.0},
    {"logit_bias": {3: 100.0}},
    {"logit_bias": {3: 4.0, 9: -100.0}},
    {"allowed_token_ids": (5, 1, 199)},
]


@pytest.mark.parametrize("params", PARAMETERS, ids=str)
def test_tokens_are_those_of_the_definition(params: dict[str, Any]) -> None:
    logits = _logits(40)
    specs = [_spec(seed=row, position=row % 5, **params) for row in range(40)]
    assert _sample(logits, specs).token_ids == _expected(logits, specs)


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.5},
        {"top_p": 0.9, "temperature": 2.0},
        {"top_p": 0.9999, "temperature": 0.5},
        {"top_p": 0.8, "min_p": 0.02},
        {"top_k": 700},
        {"top_k": 700, "top_p": 0.9},
        {"top_k": 1500, "top_p": 0.95, "min_p": 0.001, "temperature": 4.0},
        {"min_p": 0.01, "temperature": 2.0},
    ],
    ids=str,
)
def test_filters_that_keep_hundreds_of_tokens_follow_the_definition(params: dict[str, Any]) -> None:
    logits = _logits(4, vocab_size=2000).round(decimals=1)  # with many ties
    specs = [_spec(seed=row, **params) for row in range(4)]
    assert _sample(logits, specs).token_ids == _expected(logits, specs)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.5},
        {"presence_penalty": 2.0},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 0.7},
        {"frequency_penalty": -0.7, "presence_penalty": 0.3, "repetition_penalty": 1.1},
        {"repetition_penalty": 1.3, "temperature": 0.0},
        {"bad_words": ("x",)},
    ],
    ids=str,
)
def test_penalties_and_bad_words_follow_the_definition(params: dict[str, Any]) -> None:
    logits = _logits(40, vocab_size=12)
    generator = np.random.default_rng(1)
    specs = [
        replace(
            _spec(seed=row, **params),
            token_ids=generator.integers(0, 12, size=row % 9).tolist(),
            num_prompt_tokens=min(3, row % 9),
            bad_word_token_ids=((4,), (1, 2), (3, 3, 3)) if "bad_words" in params else (),
            suppressed_token_ids=(0,) if row % 2 else (),
        )
        for row in range(40)
    ]
    assert _sample(logits, specs).token_ids == _expected(logits, specs)


def test_repetition_counts_the_prompt_but_presence_and_frequency_do_not() -> None:
    logits = torch.tensor([[2.0, 1.9, 0.0]])
    history: dict[str, Any] = {"token_ids": [0, 0], "num_prompt_tokens": 2}
    repetition = replace(_spec(temperature=0.0, repetition_penalty=1.5), **history)
    others = replace(_spec(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0), **history)
    assert _sample(logits, [repetition]).token_ids == [1]
    assert _sample(logits, [others]).token_ids == [0]
    assert _sample(logits, [replace(others, num_prompt_tokens=1)]).token_ids == [1]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    spec = replace(_spec(temperature=0.0, repetition_penalty=2.0), token_ids=[0, 1], num_prompt_tokens=2)
    assert _sample(torch.tensor([[3.0, -1.0, 1.6]]), [spec]).token_ids == [2]
    assert _sample(torch.tensor([[-1.0, -1.0, -1.9]]), [spec]).token_ids == [2]


def test_a_bad_word_is_banned_only_where_it_would_be_completed() -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0]])
    spec = replace(_spec(temperature=0.0, bad_words=("x",)), bad_word_token_ids=((0, 1, 2),), num_prompt_tokens=1)
    assert _sample(logits, [replace(spec, token_ids=[0, 1])]).token_ids == [1]
    assert _sample(logits, [replace(spec, token_ids=[1, 1])]).token_ids == [2]
    assert _sample(logits, [replace(spec, token_ids=[1])]).token_ids == [2]


def test_the_token_mask_allows_exactly_its_bits() -> None:
    vocab_size = 77
    generator = np.random.default_rng(3)
    allowed = [[bool(bit) for bit in row] for row in generator.random((20, vocab_size)) < 0.1]
    logits = _logits(20, vocab_size)
    specs = [_spec(seed=row, temperature=float(row % 2)) for row in range(20)]
    expected = [reference_row(logits[row].numpy(), specs[row], allowed[row]).token_id for row in range(20)]
    sampled = _sample(logits, specs, bitmask(allowed))
    assert sampled.token_ids == expected
    assert all(allowed[row][token] for row, token in enumerate(sampled.token_ids))


def test_the_masked_mass_is_the_probability_of_what_the_mask_forbids() -> None:
    logits = _logits(3)
    logits[2, 0] = math.nan
    mask = np.full((3, (VOCAB + 31) // 32), -1, np.int32)
    mask[0, 0] = 0
    shares = _sample(logits, [_spec()] * 3, mask).masked_mass
    assert shares == pytest.approx([float(logits[0].softmax(0)[:32].sum()), 0.0, 0.0], abs=1e-6)
    assert _sample(logits, [_spec()] * 3).masked_mass == [0.0] * 3


def test_equal_logits_are_ranked_by_token_id() -> None:
    logits = torch.zeros(1, 3000)
    assert _sample(logits, [_spec(temperature=0.0)]).token_ids == [0]
    drawn = {_sample(logits, [_spec(seed=seed, top_k=70)]).token_ids[0] for seed in range(300)}
    assert drawn <= set(range(70))
    assert len(drawn) > 50


def test_ties_across_the_border_of_a_filter_are_cut_by_token_id() -> None:
    logits = torch.full((1, 500), -1.0)
    logits[0, [400, 30, 31, 32]] = torch.tensor([5.0, 4.0, 4.0, 4.0])
    specs = [_spec(seed=seed, top_k=3, temperature=2.0) for seed in range(200)]
    drawn = set(_sample(logits.expand(200, -1), specs).token_ids)
    assert drawn == {400, 30, 31}


# -- the distribution ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "quantile"),
    [
        ({}, 33.7),  # 0.9999 quantiles of chi-square with (kept tokens - 1) degrees of freedom
        ({"temperature": 2.5}, 33.7),
        ({"top_k": 4}, 21.1),
        ({"top_p": 0.8}, 18.4),
        ({"min_p": 0.2}, 21.1),
    ],
    ids=str,
)
def test_tokens_are_as_frequent_as_their_probabilities(params: dict[str, Any], quantile: float) -> None:
    logits = torch.log(torch.tensor([0.05, 0.25, 0.02, 0.3, 0.08, 0.04, 0.11, 0.01, 0.14, 0.0])).clamp(min=-6.0)
    num_draws = 20_000
    kept = reference_row(logits.numpy(), _spec(**params)).kept
    specs = [_spec(seed=draw // 100, position=draw % 100, **params) for draw in range(num_draws)]
    counts = np.bincount(_sample(logits.expand(num_draws, -1), specs).token_ids, minlength=10)
    expected = np.array([kept.get(token, 0) for token in range(10)]) / sum(kept.values()) * num_draws
    assert counts[expected == 0].sum() == 0
    seen = expected > 0
    assert float(((counts[seen] - expected[seen]) ** 2 / expected[seen]).sum()) < quantile


def test_the_token_depends_on_seed_and_position() -> None:
    logits = _logits(1, scale=0.1)
    by_seed = {_sample(logits, [_spec(seed=seed)]).token_ids[0] for seed in range(50)}
    by_position = {_sample(logits, [_spec(position=position)]).token_ids[0] for position in range(50)}
    assert len(by_seed) > 30
    assert len(by_position) > 30


# -- independence of the batch ---------------------------------------------------------------------------


def _mixed_specs(num_rows: int) -> list[SampleSpec]:
    """Every kind of row there is, in turn."""
    generator = np.random.default_rng(5)
    specs = []
    for row in range(num_rows):
        params = {**PARAMETERS[row % len(PARAMETERS)], "logprobs": row % 4 if row % 3 else None}
        spec = _spec(seed=int(generator.integers(2**63)), position=int(generator.integers(2**20)), **params)
        if row % 5 == 0:
            params = {**params, "repetition_penalty": 1.2, "frequency_penalty": 0.5}
            history = generator.integers(0, VOCAB, size=30).tolist()
            spec = replace(spec, params=SamplingParams(**params), token_ids=history, num_prompt_tokens=10)
        specs.append(spec)
    return specs


def test_a_row_gives_the_same_token_alone_in_a_batch_and_in_any_order() -> None:
    logits, specs = _logits(64), _mixed_specs(64)
    together = _sample(logits, specs)
    for row in range(64):
        alone = _sample(logits[row : row + 1], specs[row : row + 1])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs.get(0) == together.logprobs.get(row)
    order = np.random.default_rng(9).permutation(64).tolist()
    permuted = _sample(logits[order], [specs[row] for row in order])
    assert permuted.token_ids == [together.token_ids[row] for row in order]


def test_rows_drawn_in_turns_are_the_same_as_rows_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, specs = _logits(64), _mixed_specs(64)
    at_once = _sample(logits, specs).token_ids
    monkeypatch.setattr("headrace.model.sampler._MAX_WEIGHTS_AT_ONCE", 3 * VOCAB)
    assert _sample(logits, specs).token_ids == at_once


def test_the_logits_are_left_unchanged() -> None:
    logits, specs = _logits(64), _mixed_specs(64)
    before = logits.clone()
    _sample(logits, specs, bitmask([[True] * 100 + [False] * 100] * 64))
    assert torch.equal(logits, before)


# -- unusable rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
def test_a_row_that_is_not_finite_fails_alone(value: float) -> None:
    logits, specs = _logits(24), _mixed_specs(24)
    good = _sample(logits, specs)
    for row in (0, 1, 6, 12, 23):
        broken = logits.clone()
        broken[row, 17] = value
        sampled = _sample(broken, specs)
        assert list(sampled.failed) == [row]
        assert "NaN or infinite" in sampled.failed[row]
        assert sampled.token_ids[row] == NO_TOKEN
        assert row not in sampled.logprobs
        assert sampled.token_ids[:row] == good.token_ids[:row]
        assert sampled.token_ids[row + 1 :] == good.token_ids[row + 1 :]


def test_a_row_of_minus_infinities_fails() -> None:
    logits = torch.full((2, 40), -math.inf)
    logits[1, 5] = -1e30
    sampled = _sample(logits, [_spec(), _spec()])
    assert sampled.token_ids == [NO_TOKEN, 5]
    assert list(sampled.failed) == [0]


def test_a_row_whose_every_token_is_forbidden_fails_with_the_reason() -> None:
    allowed = [[False] * VOCAB, [token < 50 for token in range(VOCAB)], [True] * VOCAB]
    specs = [_spec(), _spec(allowed_token_ids=(50, 60)), _spec(temperature=0.0)]
    sampled = _sample(_logits(3), specs, bitmask(allowed))
    assert list(sampled.failed) == [0, 1]
    assert "token mask" in sampled.failed[0]
    assert "allowed_token_ids" in sampled.failed[1]
    assert sampled.token_ids[2] == int(_logits(3)[2].argmax())


def test_padding_columns_beyond_the_vocabulary_are_never_chosen() -> None:
    logits = _logits(20, vocab_size=64)
    logits[:, 50:] = 100.0
    specs = [_spec(seed=row, temperature=float(row % 2), logprobs=3) for row in range(20)]
    sampled = Sampler(50).sample(logits, specs, None)
    assert max(sampled.token_ids) < 50
    assert all(token < 50 for entry in sampled.logprobs.values() for token, _ in entry.top)


@pytest.mark.parametrize("params", [{"temperature": 1e-4}, {"top_p": 1e-4}, {"temperature": 1e-4, "top_p": 1e-4}])
def test_tiny_temperature_and_top_p_choose_the_likeliest_token(params: dict[str, Any]) -> None:
    logits = _logits(30) * 100.0
    specs = [_spec(seed=row, **params) for row in range(30)]
    sampled = _sample(logits, specs)
    assert not sampled.failed
    assert sampled.token_ids == logits.argmax(dim=1).tolist()


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    logits = _logits(1)
    plain = _sample(logits, [_spec()])
    odd = replace(
        _spec(logit_bias={VOCAB: 100.0}, presence_penalty=1.0),
        suppressed_token_ids=(VOCAB, VOCAB + 5),
        bad_word_token_ids=((VOCAB,),),
        token_ids=[VOCAB + 1],
    )
    assert _sample(logits, [odd]).token_ids == plain.token_ids


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(VOCAB).sample(torch.empty(0, VOCAB), [], None).token_ids == []


# -- log-probabilities -----------------------------------------------------------------------------------


def test_logprobs_come_from_the_logits_as_they_were() -> None:
    logits, count = _logits(2), 4
    specs = [_spec(temperature=0.1, allowed_token_ids=(11,), logprobs=count), _spec()]
    sampled = _sample(logits, specs)
    exact = torch.log_softmax(logits[0].double(), dim=0)
    entry = sampled.logprobs[0]
    assert list(sampled.logprobs) == [0]
    assert entry.token_id == sampled.token_ids[0] == 11
    assert entry.logprob == pytest.approx(float(exact[11]), abs=1e-5)
    assert entry.rank == int((exact > exact[11]).sum()) + 1
    best = exact.topk(count)
    assert [token for token, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_logprobs_zero_reports_the_chosen_token_only() -> None:
    sampled = _sample(_logits(1), [_spec(logprobs=0)])
    assert sampled.logprobs[0].token_id == sampled.token_ids[0]
    assert sampled.logprobs[0].top == ()


def test_logprobs_of_named_tokens_stand_where_the_likeliest_would() -> None:
    logits = _logits(2)
    sampled = _sample(logits, [_spec(logprob_token_ids=(7, 0)), _spec(logprobs=1)])
    expected = logits[0].log_softmax(dim=0)
    assert [token for token, _ in sampled.logprobs[0].top] == [7, 0]
    assert [value for _, value in sampled.logprobs[0].top] == pytest.approx(expected[[7, 0]].tolist(), abs=1e-5)
    assert len(sampled.logprobs[1].top) == 1


# -- any parameters at all -------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    specs=st.lists(any_spec(), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.01, 3.0, 1000.0]),
)
def test_any_batch_follows_the_definition(specs: list[SampleSpec], seed: int, scale: float) -> None:
    logits = _logits(len(specs), vocab_size=40, seed=seed, scale=scale)
    logits = logits.round(decimals=1)  # many equal logits
    sampled = _sample(logits, specs)
    assert sampled.token_ids == _expected(logits, specs)
    assert set(sampled.failed) == {row for row, token in enumerate(sampled.token_ids) if token == NO_TOKEN}
    assert all(-1 <= token < 40 for token in sampled.token_ids)
