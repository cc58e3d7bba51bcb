"""Sampling parameters are bounded and finite, or refused by name, value and limit."""

from __future__ import annotations

import math

import msgspec
import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import MAX_SEED, SamplingParams


def refusal(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)  # type: ignore[arg-type]
    return caught.value


INTEGERS = {
    "n": (1, 128),
    "top_k": (-1, 2**31 - 1),
    "seed": (-MAX_SEED - 1, MAX_SEED),
    "max_tokens": (1, 2**31 - 1),
    "logprobs": (0, 100),
    "prompt_logprobs": (0, 100),
}
NUMBERS = {
    "temperature": (0.0, 100.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_is_held_to_its_bounds(name: str) -> None:
    low, high = INTEGERS[name]
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1):
        error = refusal(**{name: value})
        assert error.param == name
        assert all(str(part) in error.message for part in (name, value, low, high))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_held_to_its_bounds(name: str) -> None:
    low, high = NUMBERS[name]
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (low - 0.01, high + 0.01, math.nan, math.inf, -math.inf):
        error = refusal(**{name: value})
        assert error.param == name
        assert name in error.message


@pytest.mark.parametrize("name", [*INTEGERS, *NUMBERS, "top_p", "min_tokens"])
@pytest.mark.parametrize("value", [True, "1", [1]])
def test_another_type_is_refused_by_name(name: str, value: object) -> None:
    assert refusal(**{name: value}).param == name


def test_top_p_zero_points_to_greedy() -> None:
    assert "temperature 0" in refusal(top_p=0.0).message
    assert refusal(top_p=1.01).param == "top_p"


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    error = refusal(min_tokens=17)
    assert error.message == "min_tokens is 17 but max_tokens is 16; lower min_tokens"
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ("",)},
        {"stop": ("x" * 4097,)},
        {"stop": (3,)},
        {"stop": ("x",) * 65},
        {"stop_token_ids": (-1,)},
        {"stop_token_ids": tuple(range(257))},
        {"logit_bias": {-1: 0.0}},
        {"logit_bias": {1: 101.0}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": dict.fromkeys(range(1025), 0.0)},
        {"allowed_token_ids": (2**31,)},
        {"bad_words": ("",)},
        {"bad_words": ("x",) * 129},
    ],
    ids=lambda fields: repr(fields)[:40],
)
def test_collections_are_bounded_in_size_and_content(fields: dict[str, object]) -> None:
    assert refusal(**fields).param == next(iter(fields))


@pytest.mark.parametrize(
    ("given", "stop"), [("ab", ("ab",)), (["a", "b"], ("a", "b")), (None, ()), ([], ()), (("a",), ("a",))]
)
def test_stop_takes_one_string_a_list_or_nothing(given: object, stop: tuple[str, ...]) -> None:
    assert SamplingParams(stop=given).stop == stop  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias"])
def test_what_is_no_collection_is_refused_by_name(name: str) -> None:
    assert refusal(**{name: 3}).param == name
    assert not getattr(SamplingParams(**{name: None}), name)  # type: ignore[arg-type]


def test_a_long_value_is_shortened_in_the_message() -> None:
    assert len(refusal(temperature="x" * 10_000).message) < 150


@pytest.mark.parametrize(
    ("fields", "is_greedy"), [({}, False), ({"temperature": 0.0}, True), ({"top_k": 1}, True), ({"top_k": 2}, False)]
)
def test_greedy_is_temperature_zero_or_one_candidate(fields: dict[str, float], is_greedy: bool) -> None:
    assert SamplingParams(**fields).is_greedy is is_greedy  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [{"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 1.1}, {"bad_words": ("x",)}],
    ids=str,
)
def test_penalties_and_bad_words_need_the_tokens_before(fields: dict[str, object]) -> None:
    assert SamplingParams(**fields).needs_history  # type: ignore[arg-type]
    assert not SamplingParams().needs_history


def test_token_ids_are_held_to_the_vocabulary_with_its_size() -> None:
    params = SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(9,), allowed_token_ids=(9,))
    params.check_token_ids(10)
    for fields in ({"logit_bias": {10: 1.0}}, {"stop_token_ids": (10,)}, {"allowed_token_ids": (10,)}):
        with pytest.raises(InvalidRequest, match="token 10 but the vocabulary has 10 tokens") as caught:
            SamplingParams(**fields).check_token_ids(10)  # type: ignore[arg-type]
        assert caught.value.param == next(iter(fields))


def test_parameters_survive_the_wire() -> None:
    params = SamplingParams(
        n=2, temperature=0.5, logit_bias={3: -1.5}, stop=("a", "b"), allowed_token_ids=(1, 2), seed=-1, max_tokens=None
    )
    data = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(data, type=SamplingParams) == params


def test_the_wire_cannot_bring_bad_parameters() -> None:
    data = msgspec.msgpack.encode({"temperature": 1000.0})
    with pytest.raises((InvalidRequest, msgspec.ValidationError)):
        msgspec.msgpack.decode(data, type=SamplingParams)
