"""Requests are refused or completed before they reach an engine, with both numbers in the message."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.request import Request
from headrace.core.request_limits import RequestLimits
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import ServiceLevel, ServiceTerms
from headrace.engine.request_builder import RequestBuilder


class CharEncoder:
    """Encodes each character as its code point; a fake computable on paper."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(char) for char in text if char != "\x00"]


BUILDER = RequestBuilder(max_model_len=512, vocab_size=256, encoder=CharEncoder())


def build(num_prompt_tokens: int = 420, **fields: object) -> Request:
    return BUILDER.build("r", [1] * num_prompt_tokens, SamplingParams(**fields), arrival_time=1.5)  # type: ignore[arg-type]


def refusal(num_prompt_tokens: int = 420, **fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        build(num_prompt_tokens, **fields)
    return caught.value


TERMS = ServiceTerms(ServiceLevel(ttft_s=1.0), "gold", "ann", 2.0, -1)


def test_a_good_request_keeps_what_the_caller_gave() -> None:
    sampling = SamplingParams(max_tokens=8, seed=-5)
    request = BUILDER.build("id", (1, 2, 3), sampling, arrival_time=2.5, terms=TERMS, cache_salt="salt")
    assert request == Request(
        request_id="id",
        prompt_token_ids=[1, 2, 3],
        sampling=sampling,
        seed=-5,
        arrival_time=2.5,
        priority=-1,
        cache_salt="salt",
        service_level=TERMS.level,
        service_class="gold",
        tenant="ann",
        weight=2.0,
    )


def test_max_tokens_that_does_not_fit_is_refused_with_the_number_that_would() -> None:
    error = refusal(max_tokens=600)
    assert error.message == "max_tokens 600 + prompt 420 = 1020 > max_model_len 512; lower max_tokens to 92"
    assert error.param == "max_tokens"
    assert build(max_tokens=92).sampling.max_tokens == 92


def test_no_max_tokens_means_up_to_the_end_of_the_context() -> None:
    assert build(420, max_tokens=None).sampling.max_tokens == 92


def test_min_tokens_must_fit_even_without_max_tokens() -> None:
    error = refusal(max_tokens=None, min_tokens=93)
    assert error.param == "min_tokens"
    assert "lower min_tokens to 92" in error.message
    assert build(max_tokens=None, min_tokens=92).sampling.max_tokens == 92


@pytest.mark.parametrize("num_tokens", [512, 513, 5000])
def test_a_prompt_that_leaves_no_room_names_both_numbers(num_tokens: int) -> None:
    error = refusal(num_tokens, max_tokens=1)
    assert error.param == "prompt"
    assert str(num_tokens) in error.message
    assert "512" in error.message
    assert build(511, max_tokens=1).sampling.max_tokens == 1


def test_an_empty_prompt_is_refused() -> None:
    assert refusal(0).param == "prompt"


@pytest.mark.parametrize("token_id", [-1, 256, 2**40, True, 1.0, "a", None])
def test_a_token_id_outside_the_vocabulary_or_no_integer_is_refused(token_id: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        BUILDER.build("r", [0, 255, token_id], SamplingParams(), arrival_time=0.0)  # type: ignore[list-item]
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "fields", [{"logit_bias": {256: 1.0}}, {"stop_token_ids": (256,)}, {"allowed_token_ids": (1, 256)}]
)
def test_sampling_token_ids_are_held_to_the_vocabulary(fields: dict[str, object]) -> None:
    assert refusal(**fields).param == next(iter(fields))


def test_a_missing_seed_is_drawn_anew_for_each_request() -> None:
    seeds = {build().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_the_default_seed_serves_requests_without_one_only() -> None:
    builder = RequestBuilder(512, 256, CharEncoder(), default_seed=7)
    assert builder.build("r", [1], SamplingParams(), arrival_time=0.0).seed == 7
    assert builder.build("r", [1], SamplingParams(seed=0), arrival_time=0.0).seed == 0


def test_bad_words_are_tokenized_bare_and_after_a_space_without_repeats() -> None:
    request = build(bad_words=("ab", " ab", "c"))
    assert request.bad_word_token_ids == ((97, 98), (32, 97, 98), (99,), (32, 99))


@pytest.mark.parametrize("word", [" ", "   ", "\x00"])
def test_a_bad_word_without_tokens_is_refused(word: str) -> None:
    assert refusal(bad_words=(word,)).param == "bad_words"


def test_what_a_client_may_ask_for_is_limited() -> None:
    builder = RequestBuilder(512, 256, CharEncoder(), limits=RequestLimits(max_n=2, max_cache_salt_chars=3))
    builder.build("r", [1], SamplingParams(n=2), arrival_time=0.0, cache_salt="sss")
    with pytest.raises(InvalidRequest, match="--max-n"):
        builder.build("r", [1], SamplingParams(n=3), arrival_time=0.0)
    with pytest.raises(InvalidRequest, match="4 characters but at most 3") as caught:
        builder.build("r", [1], SamplingParams(), arrival_time=0.0, cache_salt="ssss")
    assert caught.value.param == "cache_salt"


@pytest.mark.parametrize("priority", [-(2**31), 2**31])
def test_a_priority_out_of_bounds_is_refused(priority: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        BUILDER.build("r", [1], SamplingParams(), arrival_time=0.0, terms=ServiceTerms(priority=priority))
    assert caught.value.param == "priority"
