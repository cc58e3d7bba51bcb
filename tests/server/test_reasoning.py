"""Reasoning before a constrained answer, through HTTP on the real engine with a tiny model whose template opens it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.server.harness import RunningServer, error_of, running_server
from tests.server.real_engine import metric, tiny_backend
from tests.tiny_model import REASONING_TEMPLATE, write_tiny_model

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "on": {"type": "boolean"}},
    "required": ["x", "on"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT, "strict": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("reasoning"), chat_template=REASONING_TEMPLATE)
    with running_server(tiny_backend(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tiny_backend(write_tiny_model(tmp_path_factory.mktemp("plain")))) as running:
        yield running


def choice_of(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.chat(**{"max_tokens": 120, "seed": 4, **body})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.parametrize(
    "budget",
    [{"thinking_token_budget": 12}, {"thinking_budget": 12}, {"reasoning": {"max_tokens": 12}}],
)
def test_the_schema_binds_the_answer_behind_a_budgeted_reasoning(server: RunningServer, budget: dict[str, Any]) -> None:
    choice = choice_of(server, response_format=FORM, n=1, **budget)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"]
    jsonschema.validate(json.loads(choice["message"]["content"]), POINT)


def test_every_sample_reasons_for_itself(server: RunningServer) -> None:
    response = server.chat(max_tokens=120, n=3, seed=4, thinking_token_budget=9, response_format=FORM)
    choices = response.json()["choices"]
    assert len({choice["message"]["reasoning_content"] for choice in choices}) == 3
    for choice in choices:
        jsonschema.validate(json.loads(choice["message"]["content"]), POINT)


def test_a_stream_says_the_same(server: RunningServer) -> None:
    body: dict[str, Any] = {"response_format": FORM, "thinking_token_budget": 12, "seed": 4, "max_tokens": 120}
    whole = choice_of(server, **body)["message"]
    deltas = [choice["delta"] for chunk in server.stream_chat(**body).chunks for choice in chunk["choices"]]
    assert "".join(each.get("content") or "" for each in deltas) == whole["content"]
    assert "".join(each.get("reasoning_content") or "" for each in deltas) == whole["reasoning_content"]


def test_tokens_whose_logprobs_are_asked_for_are_the_same_tokens(server: RunningServer) -> None:
    body: dict[str, Any] = {"response_format": FORM, "thinking_token_budget": 12}
    free, told = choice_of(server, **body), choice_of(server, logprobs=True, **body)
    assert told["message"] == free["message"]
    shown = "".join(entry["token"] for entry in told["logprobs"]["content"])
    assert shown.endswith(told["message"]["content"])


def test_a_model_that_never_stops_reasoning_ends_by_length_without_an_answer(server: RunningServer) -> None:
    choice = choice_of(server, response_format=FORM, max_tokens=20)
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]


def test_a_template_that_closes_the_reasoning_leaves_the_answer_alone(server: RunningServer) -> None:
    for budget in ({}, {"thinking_token_budget": 50}):
        choice = choice_of(server, response_format=FORM, chat_template_kwargs={"enable_thinking": False}, **budget)
        assert "reasoning_content" not in choice["message"]
        jsonschema.validate(json.loads(choice["message"]["content"]), POINT)


def test_a_forced_tool_call_comes_after_the_reasoning(server: RunningServer) -> None:
    tool = {"type": "function", "function": {"name": "plot", "parameters": POINT}}
    asked = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    choice = choice_of(server, thinking_token_budget=8, max_tokens=180, **asked)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"]
    jsonschema.validate(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), POINT)


def test_a_budget_alone_ends_the_reasoning(server: RunningServer) -> None:
    choice = choice_of(server, thinking_token_budget=10, max_tokens=40, ignore_eos=True)
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"]
    none = choice_of(server, thinking_token_budget=0, max_tokens=20, ignore_eos=True)
    assert "reasoning_content" not in none["message"]


def test_reasoning_can_be_left_out_of_the_reply(server: RunningServer) -> None:
    body: dict[str, Any] = {"response_format": FORM, "thinking_token_budget": 12}
    shown = choice_of(server, **body)["message"]
    for hidden in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        message = choice_of(server, **body, **hidden)["message"]
        assert "reasoning_content" not in message
        assert message["content"] == shown["content"]
    together = choice_of(server, separate_reasoning=False, **body)["message"]["content"]
    assert together == f"{shown['reasoning_content']}</think>{shown['content']}"


def test_a_prompt_that_ends_in_reasoning_is_completed_alike(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": "Q: 1+1?\n<think>\n", "max_tokens": 60, "seed": 2, "thinking_token_budget": 6}
    text = server.complete(structured_outputs={"regex": "[0-9]{2}"}, **body).json()["choices"][0]["text"]
    assert re.fullmatch(r".*</think>[0-9]{2}", text, re.DOTALL)


def test_budgets_that_contradict_each_other_or_the_model_are_refused(
    server: RunningServer, plain: RunningServer
) -> None:
    error = error_of(server.chat(thinking_token_budget=3, thinking_budget=4), 400)
    assert error["param"] == "thinking_budget"
    error = error_of(server.chat(thinking_token_budget=3, reasoning={"max_tokens": 4}), 400)
    assert error["param"] == "reasoning.max_tokens"
    error = error_of(server.chat(thinking_token_budget=-1), 400)
    assert "must be between 0" in error["message"]
    error = error_of(plain.chat(thinking_token_budget=3), 400)
    assert error["param"] == "thinking_token_budget"
    assert "does not reason" in error["message"]


def test_how_far_the_constraint_bends_the_model_is_told_and_counted(plain: RunningServer) -> None:
    before = {name: metric(plain, f"headrace_{name}_total") for name in ("token_masks", "masked_probability_mass")}
    response = plain.chat(response_format=FORM, max_tokens=60, seed=1)
    request_id = response.json()["id"]
    (life,) = plain.http.get(f"/v1/requests/{request_id}/timeline").json()["sequences"]
    use = life["constraint"]
    assert use["kind"] == "json_schema"
    assert 0.5 < use["mean_masked_mass"] <= use["most_masked_mass"] <= 1.0, "this model writes noise"
    assert use["num_masks"] > 0
    assert use["num_forced_tokens"] > 0
    assert use["compile_s"] > 0
    masks = metric(plain, "headrace_token_masks_total") - before["token_masks"]
    assert masks == use["num_masks"]
    mass = metric(plain, "headrace_masked_probability_mass_total") - before["masked_probability_mass"]
    assert mass == pytest.approx(masks * use["mean_masked_mass"], rel=1e-6)
