"""The official Python client against a real server, in its documented forms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx2
import openai
import pytest

from tests.server.fakes import letters, spelling
from tests.server.harness import MODEL, RunningServer, eventually, running_server

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert answer.choices[0].message.content == "abcde"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.id.startswith("chatcmpl-")


def test_chat_with_every_common_parameter(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "be brief"}, *MESSAGES],
        max_completion_tokens=4,
        n=2,
        temperature=0.3,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"97": 1},
        logprobs=True,
        top_logprobs=2,
        seed=1,
        stop=["zzz"],
        user="ann",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        response_format={"type": "text"},
        extra_body={"top_k": 5, "min_tokens": 1, "ignore_eos": True},
    )
    assert [choice.message.content for choice in answer.choices] == [letters(4, 0), letters(4, 1)]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["a", "b", "c", "d"]
    assert len(logprobs.content[0].top_logprobs) == 2


def test_streamed_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "abcde"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens > 5


def test_the_streaming_helper_builds_the_same_completion(client: openai.OpenAI, server: RunningServer) -> None:
    server.engine.script = spelling("done")
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=50) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "".join(deltas) == "done"
    assert final.choices[0].finish_reason == "stop"


def test_legacy_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["x", "y"], max_tokens=3, echo=True, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["xabc", "yabc"]
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3]
    stream = client.completions.create(model=MODEL, prompt=[104, 105], max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "abc"


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == MODEL
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == 512
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_raw_responses_carry_the_request_id(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=1, extra_headers={"x-request-id": "my-id"}
    )
    assert raw.headers["x-request-id"] == "my-id"
    assert raw.parse().id == "chatcmpl-my-id"
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1)
    assert answer._request_id
    assert answer.id == f"chatcmpl-{answer._request_id}"


def test_errors_have_their_classes(client: openai.OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10_000)
    assert caught.value.param == "max_tokens"
    assert "max_model_len 512" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    server.engine.max_queued = 0
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    server.engine.is_ready = False
    with pytest.raises(openai.InternalServerError) as failure:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert failure.value.status_code == 503


def test_an_error_inside_a_stream_is_raised(client: openai.OpenAI, server: RunningServer) -> None:
    server.engine.fail_at = 2
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="not finite"):
        list(stream)


def test_the_client_retries_what_it_is_told_to(server: RunningServer) -> None:
    server.engine.max_queued = 0
    statuses: list[int] = []

    def admit_after_the_first_refusal(response: httpx2.Response) -> None:
        statuses.append(response.status_code)
        server.engine.max_queued = 8

    http = openai.DefaultHttpxClient(event_hooks={"response": [admit_after_the_first_refusal]})
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=3, http_client=http) as client:
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
    assert answer.choices[0].message.content == "ab"
    assert statuses == [429, 200]


def test_a_wrong_key_is_an_authentication_error() -> None:
    with running_server(api_key=("secret",)) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.models.list()
            assert caught.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
            assert client.models.list().data[0].id == MODEL


def test_closing_a_stream_aborts_it(client: openai.OpenAI, server: RunningServer) -> None:
    server.engine.hold_at = 3
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, max_tokens=100)
    next(iter(stream))
    stream.close()
    eventually(lambda: server.engine.aborted and not server.engine.live)


def test_the_async_client(server: RunningServer) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=k + 1) for k in range(20))
            )
            assert [answer.choices[0].message.content for answer in answers] == [letters(k + 1) for k in range(20)]
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "abcd"
            models = await client.models.list()
            assert models.data[0].id == MODEL
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model=MODEL, prompt="x", max_tokens=1, logprobs=99)

    asyncio.run(main())


def test_text_of_many_bytes_arrives_whole(client: openai.OpenAI, server: RunningServer) -> None:
    text = "naïve 漢字 🏳️‍🌈 مرحبا"
    server.engine.script = spelling(text)
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=100, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
