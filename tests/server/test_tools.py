"""Tool calls through HTTP: forced ones on the real engine, free ones from a scripted answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from headrace.core.config import ServeConfig
from tests.server.fakes import ScriptedClient, spelling
from tests.server.harness import RunningServer, error_of, running_server, scripted_backend
from tests.server.real_engine import tiny_backend
from tests.tiny_model import write_tiny_model

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells the weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "ping"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    pytest.importorskip("torch")
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    backend = tiny_backend(folder, backend="torch", max_model_len=2048, kv_cache_bytes=4 << 20)
    with running_server(backend) as running:
        yield running


@pytest.fixture(scope="module")
def scripted() -> Iterator[RunningServer]:
    """Answers every prompt with ``CALL``."""
    config = ServeConfig()
    with running_server(scripted_backend(ScriptedClient(script=spelling(CALL), max_model_len=4096), config)) as running:
        yield running


def choice_of(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.chat(**{"max_tokens": 150, "tools": TOOLS, **body})
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0])


@pytest.mark.parametrize("seed", range(3))
def test_b22_a_named_call_is_made_and_nothing_else(server: RunningServer, seed: int) -> None:
    choice = choice_of(server, tool_choice=NAMED, seed=seed)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)


def test_a_required_call_is_one_of_the_tools(server: RunningServer) -> None:
    for seed in range(4):
        choice = choice_of(server, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] in ("weather", "ping")


def test_b23_a_tool_without_parameters_is_called_with_an_empty_object(server: RunningServer) -> None:
    choice = choice_of(server, tool_choice={"type": "function", "function": {"name": "ping"}})
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_b22_a_stream_adds_up_to_the_whole_reply(server: RunningServer) -> None:
    body = {"tool_choice": NAMED, "tools": TOOLS, "seed": 5, "max_tokens": 150}
    whole = choice_of(server, **body)["message"]["tool_calls"]
    chunks = server.stream_chat(**body).chunks
    deltas = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert [call["index"] for call in deltas] == [0] * len(deltas)
    assert deltas[0]["function"]["name"] == "weather"
    assert deltas[0]["id"].startswith("call_")
    assert not any("id" in call or "name" in call["function"] for call in deltas[1:])
    assert "".join(call["function"]["arguments"] for call in deltas) == whole[0]["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_b24_a_call_cut_by_the_limit_is_delivered_as_it_is(server: RunningServer) -> None:
    choice = choice_of(server, tool_choice=NAMED, seed=1, max_tokens=52)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(call["function"]["arguments"])


def test_a_model_that_calls_by_itself_is_understood(scripted: RunningServer) -> None:
    choice = choice_of(scripted, tool_choice="auto")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": 2}


def test_a_stream_of_content_and_a_call(scripted: RunningServer) -> None:
    stream = scripted.stream_chat(tools=TOOLS, max_tokens=150)
    assert stream.texts[0] == "Let me see."
    assert stream.finish_reasons[0] == "tool_calls"


def test_without_tools_or_with_none_calls_are_text(scripted: RunningServer) -> None:
    for body in ({"tools": None}, {"tool_choice": "none"}):
        choice = choice_of(scripted, **body)
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]


def test_the_openai_client_reads_calls(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model="alphabet",
        messages=[{"role": "user", "content": "hello"}],
        tools=TOOLS,  # type: ignore[arg-type]
        tool_choice=NAMED,  # type: ignore[arg-type]
        max_tokens=150,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "weather"
    client.close()


def test_b25_histories_with_calls_are_taken(server: RunningServer) -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    response = server.post("/v1/chat/completions", {"messages": messages, "tools": TOOLS, "max_tokens": 3})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 7}}]}, "tools[0].function.parameters"),
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [TOOLS[1]] * 129}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "regex"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(scripted: RunningServer, body: dict[str, Any], param: str) -> None:
    assert error_of(scripted.chat(max_tokens=2, **body), 400)["param"] == param


def test_a_tools_schema_that_cannot_be_enforced_is_refused_when_the_call_is_forced(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    error = error_of(server.chat(tools=[tool], tool_choice="required", max_tokens=5), 400)
    assert error["param"] == "tool_choice"
    assert "#/properties/a/uniqueItems" in error["message"]


def test_allowed_tools_narrow_the_choice(server: RunningServer) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "ping"}}]}
    choice = choice_of(
        server, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, parallel_tool_calls=False
    )
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "ping"
