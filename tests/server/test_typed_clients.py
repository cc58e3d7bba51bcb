"""Clients that ask for typed answers, unchanged, against the real engine with a tiny model whose taste is random.

What such a model writes is noise within the form, so an answer that fits a type was made to fit by the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Literal

import openai
import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.agent import AgentRunResult
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.server.harness import RunningServer, running_server
from tests.server.real_engine import tiny_backend
from tests.tiny_model import TOOL_TEMPLATE, write_tiny_model

MESSAGES = [{"role": "user", "content": "hi"}]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: Annotated[int, Field(ge=0, le=9)]
    colour: Colour


class Drawing(BaseModel):
    """Nested, with a reference, a union, an optional part and a bounded list."""

    title: Annotated[str, Field(max_length=6)]
    points: Annotated[list[Point], Field(max_length=2)]
    kind: Literal["sketch", "plan"]
    remark: bool | None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(
        tiny_backend(write_tiny_model(tmp_path_factory.mktemp("typed"), chat_template=TOOL_TEMPLATE))
    ) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def model_name(server: RunningServer) -> str:
    name: str = server.http.get("/v1/models").json()["data"][0]["id"]
    return name


def test_openai_parses_an_answer_into_a_pydantic_model(server: RunningServer, client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model=model_name(server), messages=MESSAGES, response_format=Drawing, max_tokens=300, seed=seed
        )
        message = answer.choices[0].message
        assert message.refusal is None
        assert isinstance(message.parsed, Drawing)
        assert json.loads(message.content or "") == message.parsed.model_dump(mode="json")


def test_openai_parses_every_one_of_several_answers(server: RunningServer, client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=model_name(server), messages=MESSAGES, response_format=Point, max_tokens=60, n=3
    )
    assert all(isinstance(choice.message.parsed, Point) for choice in answer.choices)


def test_openai_parses_a_stream(server: RunningServer, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=model_name(server), messages=MESSAGES, response_format=Point, max_tokens=60
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Point)


def test_openai_parses_the_arguments_of_a_tool(server: RunningServer, client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=model_name(server),
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Point)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=120,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Point)


def test_an_answer_that_is_cut_off_is_told_as_such(server: RunningServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=model_name(server), messages=MESSAGES, response_format=Drawing, max_tokens=4
        )


@pytest.mark.parametrize("output", [NativeOutput(Point), ToolOutput(Point)], ids=["native", "tool"])
def test_pydantic_ai_gets_its_output_type(server: RunningServer, output: object) -> None:
    async def ask() -> AgentRunResult[Point]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            model = OpenAIChatModel(model_name(server), provider=OpenAIProvider(openai_client=client))
            settings = ModelSettings(max_tokens=100, parallel_tool_calls=False)
            agent: Agent[None, Point] = Agent(model, output_type=output, model_settings=settings)
            return await agent.run("hi")

    result = asyncio.run(ask())
    assert isinstance(result.output, Point)
    assert result.usage.output_tokens > 0
