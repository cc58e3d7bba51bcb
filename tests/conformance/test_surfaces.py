"""One answer, three surfaces: an HTTP stream put together, a whole HTTP reply, and the offline API agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.core.sampling import SamplingParams
from headrace.llm.offline import LLM
from headrace.llm.outputs import CompletionOutput, GenerationOutput
from tests.server.harness import RunningServer, running_server
from tests.server.real_engine import TINY_SETTINGS, tiny_backend
from tests.tiny_model import write_tiny_model

PROMPTS = ["the river and the", "Ünïcödé 世界 👍🏽", "a\nb\tc", "then " * 60]

Fields = dict[str, Any]
"""Sampling fields: the request body's spelling, which is the offline API's too."""

SAMPLINGS: dict[str, Fields] = {
    "greedy": {"temperature": 0, "max_tokens": 40},
    "greedy to the end of the context": {"temperature": 0, "max_tokens": 200, "ignore_eos": True},
    "seeded": {"seed": 7, "max_tokens": 60},
    "seeded and narrowed": {"seed": 8, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "max_tokens": 40},
    "penalised": {"seed": 9, "max_tokens": 40, "presence_penalty": 0.5, "frequency_penalty": 0.5,
                  "repetition_penalty": 1.2},
    "three samples": {"seed": 10, "n": 3, "max_tokens": 30},
    "a stop string": {"seed": 11, "max_tokens": 120, "ignore_eos": True, "stop": ["e", "th"]},
    "a stop string, shown": {"seed": 11, "max_tokens": 120, "ignore_eos": True, "stop": ["e", "th"],
                             "include_stop_str_in_output": True},
    "a stop string held back to the end": {"seed": 12, "max_tokens": 9, "ignore_eos": True, "stop": ["\U0001f9ff"]},
    "a stop token": {"seed": 13, "max_tokens": 200, "ignore_eos": True, "stop_token_ids": [70, 80, 90, 100, 110]},
    "bias and bans": {"seed": 14, "max_tokens": 30, "logit_bias": {"68": 8.0}, "bad_words": ["the"]},
    "few tokens allowed": {"seed": 15, "max_tokens": 30, "ignore_eos": True, "allowed_token_ids": [65, 66, 67]},
    "log-probabilities": {"seed": 16, "n": 2, "max_tokens": 20, "logprobs": 3},
    "special tokens shown": {"seed": 17, "max_tokens": 60, "ignore_eos": True, "skip_special_tokens": False},
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What every surface says of one generated sequence."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Answer:
    """All of one request; ``usage`` is prompt and completion tokens."""

    choices: tuple[Choice, ...]
    usage: tuple[int, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running_server(tiny_backend(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **TINY_SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("name", SAMPLINGS)
def test_completions_agree(name: str, server: RunningServer, llm: LLM) -> None:
    fields = SAMPLINGS[name]
    asked = {**fields, "return_token_ids": True}
    offline = [offline_answer(output) for output in llm.generate(PROMPTS, offline_params(fields), use_tqdm=False)]
    whole = [whole_answer(server.complete(prompt=prompt, **asked).json()) for prompt in PROMPTS]
    streamed = [streamed_answer(server, asked, prompt) for prompt in PROMPTS]
    assert whole == offline
    assert streamed == offline


@pytest.mark.parametrize("name", SAMPLINGS)
def test_chats_agree(name: str, server: RunningServer, llm: LLM) -> None:
    fields = SAMPLINGS[name]
    asked = {**fields, "return_token_ids": True}
    if "logprobs" in fields:
        asked |= {"logprobs": True, "top_logprobs": fields["logprobs"]}
    conversations = [
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}] for prompt in PROMPTS
    ]
    outputs = llm.chat(conversations, offline_params(fields), use_tqdm=False)
    offline = [offline_answer(output) for output in outputs]
    for conversation, expected in zip(conversations, offline, strict=True):
        body = {"messages": conversation, **asked}
        assert whole_answer(server.post("/v1/chat/completions", body).json()) == expected
        assert streamed_answer(server, body, None) == expected


def test_the_cases_reach_what_they_are_about(llm: LLM) -> None:
    """Otherwise the equalities above would hold of nothing."""

    def outputs(name: str) -> list[CompletionOutput]:
        generated = llm.generate(PROMPTS, offline_params(SAMPLINGS[name]), use_tqdm=False)
        return [choice for output in generated for choice in output.outputs]

    assert {choice.stop_reason for choice in outputs("a stop string")} & {"e", "th"}
    assert any(choice.text.endswith(("e", "th")) for choice in outputs("a stop string, shown"))
    assert any(isinstance(choice.stop_reason, int) for choice in outputs("a stop token"))
    assert {choice.finish_reason for choice in outputs("greedy to the end of the context")} == {"length"}
    assert len({choice.text for choice in outputs("three samples")}) > len(PROMPTS)
    assert any("<|" in choice.text for choice in outputs("special tokens shown"))
    assert all(set(choice.token_ids) <= {65, 66, 67} for choice in outputs("few tokens allowed"))


def offline_params(fields: Fields) -> SamplingParams:
    bias = {int(token_id): value for token_id, value in fields.get("logit_bias", {}).items()}
    return SamplingParams(**{**fields, "logit_bias": bias})


def offline_answer(output: GenerationOutput) -> Answer:
    choices = tuple(
        Choice(
            choice.text,
            tuple(choice.token_ids),
            str(choice.finish_reason),
            choice.stop_reason,
            tuple(entry[token].logprob for entry, token in zip(choice.logprobs or (), choice.token_ids, strict=False)),
        )
        for choice in output.outputs
    )
    return Answer(choices, (len(output.prompt_token_ids), sum(len(choice.token_ids) for choice in choices)))


def whole_answer(body: dict[str, Any]) -> Answer:
    choices = tuple(
        Choice(
            choice["message"]["content"] if "message" in choice else choice["text"],
            tuple(choice["token_ids"]),
            choice["finish_reason"],
            choice["stop_reason"],
            logprobs_of(choice["logprobs"]),
        )
        for choice in body["choices"]
    )
    return Answer(choices, usage_of(body["usage"]))


def streamed_answer(server: RunningServer, asked: Fields, prompt: str | None) -> Answer:
    asked = {**asked, "stream_options": {"include_usage": True}}
    stream = server.stream_chat(**asked) if prompt is None else server.stream_completion(prompt=prompt, **asked)
    assert stream.usage is not None
    choices = tuple(
        Choice(
            stream.texts[index],
            tuple(stream.token_ids[index]),
            stream.finish_reasons[index],
            stream.stop_reasons[index],  # type: ignore[arg-type]
            tuple(value for piece in stream.logprobs.get(index, ()) for value in logprobs_of(piece)),
        )
        for index in sorted(stream.texts)
    )
    return Answer(choices, usage_of(stream.usage))


def logprobs_of(logprobs: dict[str, Any] | None) -> tuple[float, ...]:
    if logprobs is None:
        return ()
    if "content" in logprobs:
        return tuple(entry["logprob"] for entry in logprobs["content"])
    return tuple(logprobs["token_logprobs"])


def usage_of(usage: dict[str, Any]) -> tuple[int, int]:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]
