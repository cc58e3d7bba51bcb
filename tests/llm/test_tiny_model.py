"""``LLM`` over a complete tiny model: the same sums of log-probabilities whichever way they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace
from headrace import LLM, SamplingParams
from tests.tiny_model import MAX_POSITION, VOCAB_SIZE, write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, ignore_eos=True)


@pytest.fixture(scope="module", name="llm")
def tiny_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    with LLM(str(folder), threads=1, max_num_seqs=4, max_num_batched_tokens=32, kv_cache_bytes="4MiB") as llm:
        yield llm


def test_public_names_are_all_there() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
        assert name in dir(headrace)
    assert headrace.RequestOutput is headrace.GenerationOutput
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        headrace.Nothing  # noqa: B018


def test_greedy_takes_the_likeliest_token_and_reports_it(llm: LLM) -> None:
    completion = llm.generate("the cat and the", GREEDY)[0].outputs[0]
    assert len(completion.token_ids) == 12
    assert completion.logprobs is not None
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(position)) == token_id
        assert position[token_id].rank == 1
        assert len(position) == 3
    assert completion.cumulative_logprob == pytest.approx(
        sum(
            position[token_id].logprob
            for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True)
        )
    )


def test_a_score_equals_what_generation_reported(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [10, 20, 30, 40]}
    completion = llm.generate(prompt, GREEDY)[0].outputs[0]  # type: ignore[arg-type]
    (score,) = llm.score(prompt, {"prompt_token_ids": completion.token_ids})  # type: ignore[arg-type]
    assert score.token_ids == completion.token_ids
    assert score.is_greedy
    assert score.total_logprob == pytest.approx(completion.cumulative_logprob, abs=1e-3)


def test_prompt_logprobs_have_one_entry_per_token_and_none_for_the_first(llm: LLM) -> None:
    output = llm.generate("the cat and the hat", SamplingParams(max_tokens=1, prompt_logprobs=2))[0]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    for token_id, position in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert position is not None
        assert position[token_id].logprob <= 0.0


def test_a_repeated_prompt_hits_the_cache_and_gives_the_same(llm: LLM) -> None:
    prompt = {"prompt_token_ids": list(range(3, 100))}
    first, second = llm.generate([prompt], GREEDY)[0], llm.generate([prompt], GREEDY)[0]  # type: ignore[list-item]
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 96
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


def test_one_seed_gives_one_answer_and_n_gives_several(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, seed=5, n=3, ignore_eos=True)
    first, second = llm.generate("the", params)[0], llm.generate("the", params)[0]
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]
    assert len({tuple(o.token_ids) for o in first.outputs}) == 3


def test_limits_are_the_models(llm: LLM) -> None:
    with pytest.raises(headrace.InvalidRequest, match=f"max_model_len {MAX_POSITION}"):
        llm.generate("the", SamplingParams(max_tokens=MAX_POSITION))
    with pytest.raises(headrace.InvalidRequest, match=f"vocabulary has {VOCAB_SIZE} tokens"):
        llm.generate({"prompt_token_ids": [VOCAB_SIZE]}, SamplingParams(max_tokens=1))


def test_a_conversation_is_answered(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the cat <|im_end|> and"}]
    output = llm.chat(messages, SamplingParams(max_tokens=4))[0]
    assert output.finished
    assert output.prompt_token_ids.count(2) == 1, "a control token's spelling in a message is text"
