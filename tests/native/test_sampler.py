"""The native sampler against the definition, against the sampler in torch, and against arguments that make no sense."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.core.sampled_tokens import NO_TOKEN, SampledTokens
from headrace.core.sampling import SamplingParams
from headrace.core.step import SampleSpec, TokenMask
from headrace.model.logprobs import token_logprobs
from headrace.model.random_bits import uniforms
from headrace.model.sampler import Sampler
from headrace.native import _native
from headrace.native.sampler import NativeSampler
from tests.model.reference_sampler import reference_row
from tests.model.sample_specs import any_spec, bitmask

torch.set_num_threads(1)

VOCAB = 200


def _spec(seed: int = 7, position: int = 3, **params: Any) -> SampleSpec:
    return SampleSpec(params=SamplingParams(**params), seed=seed, position=position)


def _logits(num_rows: int, vocab_size: int = VOCAB, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(num_rows, vocab_size)) * scale).astype(np.float32)


def _sampler(vocab_size: int, num_threads: int = 1) -> NativeSampler:
    return NativeSampler(vocab_size, _native.ThreadPool(num_threads))


def _sample(logits: np.ndarray, specs: list[SampleSpec], token_mask: TokenMask | None = None) -> SampledTokens:
    return _sampler(logits.shape[1]).sample(logits, specs, token_mask)


# -- against the definition ------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    specs=st.lists(any_spec(), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.0, 0.1, 3.0, 100.0]),
)
def test_tokens_are_those_of_the_definition_for_any_parameters(
    specs: list[SampleSpec], seed: int, scale: float
) -> None:
    logits = _logits(len(specs), vocab_size=40, seed=seed, scale=scale).round(decimals=1)  # many equal logits
    sampled = _sample(logits, specs)
    expected = [reference_row(row, spec).token_id for row, spec in zip(logits, specs, strict=True)]
    assert sampled.token_ids == [NO_TOKEN if token is None else token for token in expected]
    assert set(sampled.failed) == {row for row, token in enumerate(expected) if token is None}


def test_the_token_mask_allows_exactly_its_bits() -> None:
    vocab_size = 77
    generator = np.random.default_rng(3)
    allowed = [[bool(bit) for bit in row] for row in generator.random((20, vocab_size)) < 0.1]
    logits = _logits(20, vocab_size)
    specs = [_spec(seed=row, temperature=float(row % 2)) for row in range(20)]
    expected = [reference_row(logits[row], specs[row], allowed[row]).token_id for row in range(20)]
    assert _sample(logits, specs, bitmask(allowed)).token_ids == expected


@pytest.mark.parametrize("vocab_size", [1, 31, 33, VOCAB, 128, 1000, 50_000])
def test_the_masked_mass_is_that_of_torch(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    num_rows, num_words = 6, (vocab_size + 31) // 32
    logits = _logits(num_rows, vocab_size, scale=5.0)
    mask = rng.integers(-(2**31), 2**31, (num_rows, num_words)).astype(np.int32)
    mask[0] = -1
    mask[1] = 0
    mask[2] &= rng.integers(0, 2, num_words).astype(np.int32)
    sampled = _sample(logits, [_spec()] * num_rows, mask)
    torch_sampler = Sampler(vocab_size)
    expected = torch_sampler.sample(torch.from_numpy(logits), [_spec()] * num_rows, mask)
    assert sampled.masked_mass == pytest.approx(expected.masked_mass, abs=1e-5)
    assert sampled.masked_mass[0] == 0.0
    assert sampled.masked_mass[1] == 1.0
    assert _sample(logits, [_spec()] * num_rows).masked_mass == [0.0] * num_rows


def test_random_numbers_are_those_of_the_definition() -> None:
    # Equal weights make the token the random number itself: 2**16 tokens show its first 16 bits.
    vocab_size, generator = 1 << 16, random.Random(1)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1, *(generator.getrandbits(64) for _ in range(20))]
    positions = [generator.choice([0, 1, 2**31, 2**40]) for _ in seeds]
    specs = [_spec(seed=seed, position=position) for seed, position in zip(seeds, positions, strict=True)]
    sampled = _sample(np.zeros((len(specs), vocab_size), np.float32), specs)
    assert sampled.token_ids == (uniforms(seeds, positions) * vocab_size).astype(int).tolist()


# -- against torch ---------------------------------------------------------------------------------------

SHAPES_OF_LOGITS = ["normal", "flat", "peaked", "ties", "ranked", "equal", "forbidden"]


def _shaped_logits(shape: str, num_rows: int, vocab_size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = 3 * rng.normal(size=(num_rows, vocab_size))
    if shape == "flat":
        values *= 0.01
    elif shape == "peaked":
        values[np.arange(num_rows), rng.integers(0, vocab_size, num_rows)] += 20
    elif shape == "ties":
        values = values.round(1)
    elif shape == "ranked":  # likelihoods that fall with the rank, as a language model's do
        ranks = rng.permuted(np.broadcast_to(np.arange(2, vocab_size + 2), values.shape), axis=1)
        values = 0.1 * values - 1.4 * np.log(ranks)
    elif shape == "equal":
        values[:] = 0.0
    elif shape == "forbidden":
        values[rng.random(values.shape) < 0.5] = -math.inf
    return np.ascontiguousarray(values, np.float32)


def _random_spec(rng: random.Random, vocab_size: int) -> SampleSpec:
    def sometimes(probability: float, values: list[Any], otherwise: Any) -> Any:
        return rng.choice(values) if rng.random() < probability else otherwise

    params = SamplingParams(
        temperature=rng.choice([0.0, 1e-4, 0.3, 0.8, 1.0, 1.0, 2.0, 10.0, 100.0]),
        top_k=sometimes(0.5, [1, 2, 40, 63, 64, 200, 512, 3000, vocab_size], 0),
        top_p=sometimes(0.5, [1e-3, 0.3, 0.8, 0.95, 0.999, 0.999999], 1.0),
        min_p=sometimes(0.3, [1e-4, 0.05, 0.5, 1.0], 0.0),
        repetition_penalty=sometimes(0.2, [0.7, 1.2, 1.8], 1.0),
        frequency_penalty=sometimes(0.2, [-0.7, 0.5], 0.0),
        presence_penalty=sometimes(0.2, [-0.7, 0.5], 0.0),
        logit_bias={rng.randrange(vocab_size): rng.uniform(-100, 20) for _ in range(sometimes(0.2, [1, 5], 0))},
        allowed_token_ids=tuple(rng.randrange(vocab_size) for _ in range(sometimes(0.1, [1, 20, 200], 0))),
        logprobs=sometimes(0.2, [0, 3, 20], None),
    )
    history = [rng.randrange(vocab_size) for _ in range(30)] if params.needs_history else []
    return SampleSpec(
        params,
        seed=rng.getrandbits(64),
        position=rng.randrange(10_000),
        token_ids=history,
        num_prompt_tokens=len(history) // 3,
        suppressed_token_ids=(3, 5) if rng.random() < 0.2 else (),
    )


@pytest.mark.parametrize(("vocab_size", "num_rows", "num_rounds"), [(50, 150, 2), (320, 150, 2), (49_152, 16, 3)])
@pytest.mark.parametrize("shape", SHAPES_OF_LOGITS)
def test_tokens_are_those_of_torch(shape: str, vocab_size: int, num_rows: int, num_rounds: int) -> None:
    rng = random.Random(vocab_size)
    reference, native = Sampler(vocab_size), _sampler(vocab_size, num_threads=2)
    for round_ in range(num_rounds):
        logits = _shaped_logits(shape, num_rows, vocab_size, seed=round_)
        specs = [_random_spec(rng, vocab_size) for _ in range(num_rows)]
        words = np.random.default_rng(round_).integers(0, 2**32, (num_rows, -(-vocab_size // 32)), np.uint32)
        mask = words.view(np.int32) if round_ == 0 else None
        _assert_same(reference.sample(torch.from_numpy(logits), specs, mask), native.sample(logits, specs, mask))


@pytest.mark.parametrize("shape", ["ranked", "flat", "ties"])
def test_tokens_of_a_huge_vocabulary_are_those_of_torch(shape: str) -> None:
    vocab_size, rng = 262_144, random.Random(9)
    logits = _shaped_logits(shape, 6, vocab_size, seed=0)
    specs = [_random_spec(rng, vocab_size) for _ in range(6)]
    expected = Sampler(vocab_size).sample(torch.from_numpy(logits), specs, None)
    _assert_same(expected, _sampler(vocab_size, num_threads=2).sample(logits, specs, None))


def _assert_same(expected: SampledTokens, sampled: SampledTokens) -> None:
    assert sampled.token_ids == expected.token_ids
    assert sampled.failed == expected.failed
    assert sampled.logprobs.keys() == expected.logprobs.keys()
    for row, entry in expected.logprobs.items():
        ours = sampled.logprobs[row]
        assert (ours.token_id, ours.rank) == (entry.token_id, entry.rank)
        assert ours.logprob == pytest.approx(entry.logprob, rel=1e-5, abs=1e-5)
        assert [token for token, _ in ours.top] == [token for token, _ in entry.top]
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in entry.top], rel=1e-5, abs=1e-5)


# -- independence of the batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_row_gives_the_same_token_alone_in_a_batch_and_in_any_order(num_threads: int) -> None:
    rng, num_rows, vocab_size = random.Random(5), 64, 3000
    logits = _shaped_logits("normal", num_rows, vocab_size, seed=1)
    specs = [_random_spec(rng, vocab_size) for _ in range(num_rows)]
    sampler = _sampler(vocab_size, num_threads)
    together = sampler.sample(logits, specs, None)
    for row in range(num_rows):
        alone = sampler.sample(logits[row : row + 1], specs[row : row + 1], None)
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs.get(0) == together.logprobs.get(row)
    order = rng.sample(range(num_rows), num_rows)
    permuted = sampler.sample(logits[order], [specs[row] for row in order], None)
    assert permuted.token_ids == [together.token_ids[row] for row in order]


def test_the_logits_are_left_unchanged() -> None:
    rng = random.Random(6)
    logits = _logits(64)
    before = logits.copy()
    _sample(logits, [_random_spec(rng, VOCAB) for _ in range(64)], bitmask([[True] * 100 + [False] * 100] * 64))
    assert np.array_equal(logits, before)


# -- unusable rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf], ids=["nan", "negative nan", "inf"])
def test_a_row_that_is_not_finite_fails_alone(value: float) -> None:
    rng, vocab_size = random.Random(7), 333
    logits = _logits(8, vocab_size)
    specs = [replace(_random_spec(rng, vocab_size), suppressed_token_ids=()) for _ in range(8)]
    good = _sample(logits, specs)
    for row, column in [(0, 0), (3, 130), (7, 332)]:
        broken = logits.copy()
        broken[row, column] = value
        sampled = _sample(broken, specs)
        assert list(sampled.failed) == [row]
        assert "NaN or infinite" in sampled.failed[row]
        assert sampled.token_ids[row] == NO_TOKEN
        assert row not in sampled.logprobs
        assert (
            sampled.token_ids[:row] + sampled.token_ids[row + 1 :] == good.token_ids[:row] + good.token_ids[row + 1 :]
        )


def test_a_row_of_minus_infinities_fails() -> None:
    logits = np.full((2, 40), -math.inf, np.float32)
    logits[1, 5] = -1e30
    sampled = _sample(logits, [_spec(), _spec()])
    assert sampled.token_ids == [NO_TOKEN, 5]
    assert list(sampled.failed) == [0]


def test_a_row_whose_every_token_is_forbidden_fails_with_the_reason() -> None:
    allowed = [[False] * VOCAB, [token < 50 for token in range(VOCAB)], [True] * VOCAB]
    specs = [_spec(), _spec(allowed_token_ids=(50, 60)), _spec(temperature=0.0)]
    sampled = _sample(_logits(3), specs, bitmask(allowed))
    assert list(sampled.failed) == [0, 1]
    assert "allowed_token_ids" in sampled.failed[1]
    assert sampled.token_ids[2] == int(_logits(3)[2].argmax())


def test_padding_columns_beyond_the_vocabulary_are_never_chosen() -> None:
    logits = _logits(20, vocab_size=64)
    logits[:, 50:] = 100.0
    logits[:, 63] = math.nan
    specs = [_spec(seed=row, temperature=float(row % 2), logprobs=3) for row in range(20)]
    sampled = _sampler(50).sample(logits, specs, None)
    assert not sampled.failed
    assert max(sampled.token_ids) < 50
    assert all(token < 50 for entry in sampled.logprobs.values() for token, _ in entry.top)


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    logits = _logits(1)
    odd = replace(
        _spec(logit_bias={VOCAB: 100.0}, presence_penalty=1.0),
        suppressed_token_ids=(VOCAB, VOCAB + 5, -1),
        bad_word_token_ids=((VOCAB,),),
        token_ids=[VOCAB + 1],
    )
    assert _sample(logits, [odd]).token_ids == _sample(logits, [_spec()]).token_ids


def test_no_rows_give_no_tokens() -> None:
    assert _sampler(VOCAB).sample(np.empty((0, VOCAB), np.float32), [], None).token_ids == []
    assert _sampler(VOCAB).token_logprobs(np.empty((0, VOCAB), np.float32), [], []) == []


# -- log-probabilities of given tokens -------------------------------------------------------------------


def test_logprobs_of_given_tokens_are_those_of_torch() -> None:
    logits = _shaped_logits("ties", 20, 500, seed=4)
    token_ids = np.random.default_rng(1).integers(0, 500, 20).tolist()
    num_top = [row % 21 for row in range(20)]
    expected = token_logprobs(torch.from_numpy(logits), token_ids, num_top)
    for ours, entry in zip(_sampler(500).token_logprobs(logits, token_ids, num_top), expected, strict=True):
        assert (ours.token_id, ours.rank) == (entry.token_id, entry.rank)
        assert ours.logprob == pytest.approx(entry.logprob, abs=1e-5)
        assert [token for token, _ in ours.top] == [token for token, _ in entry.top]


def test_logprobs_of_named_tokens_stand_where_the_likeliest_would() -> None:
    logits = _logits(2, 500, seed=9)
    sampled = _sample(logits, [_spec(logprob_token_ids=(7, 0, 499)), _spec(logprobs=2)])
    expected = token_logprobs(torch.from_numpy(logits[[0, 0, 0]]), [7, 0, 499], [0, 0, 0])
    assert [token for token, _ in sampled.logprobs[0].top] == [7, 0, 499]
    assert [value for _, value in sampled.logprobs[0].top] == pytest.approx([e.logprob for e in expected], abs=1e-5)
    assert len(sampled.logprobs[1].top) == 2


def test_logprobs_of_a_row_that_is_not_finite_say_so() -> None:
    logits = _logits(2)
    logits[0, 3] = math.nan
    broken, sound = _sampler(VOCAB).token_logprobs(logits, [1, 1], [2, 2])
    assert math.isnan(broken.logprob)
    assert (broken.rank, broken.top) == (0, ())
    assert math.isfinite(sound.logprob)


def test_a_vocabulary_smaller_than_the_alternatives_asked_for_reports_all_of_it() -> None:
    sampled = _sample(_logits(2, vocab_size=3), [_spec(logprobs=20)] * 2)
    assert [sorted(token for token, _ in entry.top) for entry in sampled.logprobs.values()] == [[0, 1, 2]] * 2


# -- arguments that make no sense ------------------------------------------------------------------------


def test_arrays_of_another_type_or_layout_are_refused_instead_of_copied() -> None:
    specs = [_spec()] * 4
    for wrong in (_logits(4).astype(np.float64), np.asfortranarray(_logits(4)), _logits(8)[::2], _logits(4)[0]):
        with pytest.raises(TypeError):
            _sample_anything(wrong, specs, None)


@pytest.mark.parametrize(
    ("shape", "num_specs", "mask_shape", "message"),
    [
        ((3, VOCAB), 4, None, "numbers of rows"),
        ((4, VOCAB - 1), 4, None, "199 columns, fewer than"),
        ((4, VOCAB), 4, (4, 6), "number of words"),
        ((4, VOCAB), 4, (3, 7), "another shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    shape: tuple[int, int], num_specs: int, mask_shape: tuple[int, int] | None, message: str
) -> None:
    mask = None if mask_shape is None else np.full(mask_shape, -1, np.int32)
    with pytest.raises(ValueError, match=message):
        _sample_anything(np.zeros(shape, np.float32), [_spec()] * num_specs, mask)


def _sample_anything(logits: np.ndarray, specs: list[SampleSpec], token_mask: TokenMask | None) -> SampledTokens:
    return _sampler(VOCAB).sample(logits, specs, token_mask)


def test_logprobs_of_tokens_outside_the_vocabulary_are_refused() -> None:
    for token_id in (-1, VOCAB):
        with pytest.raises(ValueError, match="out of the vocabulary"):
            _sampler(VOCAB).token_logprobs(_logits(1), [token_id], [0])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_columns_whatever_crash(data: st.DataObject) -> None:
    """Sizes and numbers that mean nothing are refused with a typed error or do no harm."""
    rows = data.draw(st.integers(0, 3))
    size = st.integers(0, 3)
    wide = st.sampled_from([-(2**63), -2, -1, 0, 1, 2, 3, 2**40, 2**63 - 1])
    starts = st.lists(st.one_of(st.integers(0, 4), wide), min_size=5 * rows, max_size=5 * rows + 2).map(sorted)
    reals = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 5e-324, 0.5, 1.0, 2.0, 1e308])

    def columns(num_columns: int, values: st.SearchStrategy[Any], dtype: type) -> np.ndarray:
        count = rows * num_columns
        drawn = data.draw(st.lists(values, min_size=count, max_size=count))
        return np.array(drawn, dtype).reshape(rows, num_columns)

    def lists(values: st.SearchStrategy[list[Any]], dtype: type) -> np.ndarray:
        return np.array(data.draw(values), dtype)

    pool = _native.ThreadPool(data.draw(st.integers(1, 2)))
    num_top = data.draw(size)
    logprobs = _native.LogprobColumns(
        np.zeros(rows, np.float32),
        np.zeros(rows, np.int32),
        np.zeros((rows, num_top), np.int32),
        np.zeros((rows, data.draw(st.sampled_from([num_top, 1]))), np.float32),
    )
    batch = _native.SampleBatch(
        columns(6, reals, np.float64),
        columns(4, wide, np.int64),
        lists(starts, np.int64),
        lists(st.lists(st.integers(-3, 40), max_size=4), np.int32),
        lists(st.lists(reals, max_size=3), np.float64),
        lists(st.lists(st.integers(0, 3), min_size=rows + 1, max_size=rows + 1).map(sorted), np.int64),
        data.draw(st.sampled_from([None, np.full((rows, 2), -1, np.int32), np.zeros((rows, 1), np.int32)])),
    )
    token_ids = np.zeros(data.draw(st.sampled_from([rows, 1])), np.int32)
    masked_mass = np.zeros(data.draw(st.sampled_from([rows, 1])), np.float32)
    try:
        workspace = _native.SamplingWorkspace(40, 1)
        statuses = np.zeros(rows, np.int32)
        _native.sample(_logits(rows, 40), batch, pool, workspace, token_ids, statuses, masked_mass, logprobs)
    except ValueError:
        return
    assert all(-1 <= token < 40 for token in token_ids)
