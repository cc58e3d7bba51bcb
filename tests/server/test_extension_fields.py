"""Fields other servers added to OpenAI's bodies: each is honoured, harmless, or refused by name; none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.core.errors import RequestFailed
from headrace.core.request import FinishReason, RequestOutput, Usage
from headrace.server.generation import Delta
from headrace.server.json_body import BodyType
from headrace.server.protocol_chat import CHAT_BODY
from headrace.server.protocol_completions import COMPLETION_BODY
from headrace.server.stream_interval import SpacedDeltas
from tests.server.fakes import letters
from tests.server.harness import RunningServer, error_of

SHARED = """
    n temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty logit_bias seed
    sampling_seed stop stop_token_ids stop_regex include_stop_str_in_output no_stop_trim min_tokens ignore_eos bad_words
    allowed_token_ids repetition_detection skip_special_tokens spaces_between_special_tokens max_tokens
    use_beam_search beam_width length_penalty early_stopping best_of top_p_min prompt_ignore_length
    logprobs prompt_logprobs logprob_token_ids token_ids_logprob logprob_start_len return_tokens_as_token_ids
    return_token_ids return_hidden_states return_routed_experts return_context_logits return_generation_logits
    echo suffix response_format structured_outputs guided_json guided_regex guided_choice guided_grammar
    regex ebnf json_schema structural_tag thinking_token_budget
    stream stream_options stream_interval priority cache_salt extra_key session_id session_params
    prompt_embeds truncate_prompt_tokens truncation_side add_special_tokens request_id rid user metadata store
    service_tier logits_processors custom_logit_processor custom_params vllm_xargs lora_path lora_request
    kv_transfer_params custom_labels watermark model
"""
CHAT_ONLY = """
    messages tools tool_choice parallel_tool_calls functions function_call reasoning_effort include_reasoning
    separate_reasoning stream_reasoning top_logprobs max_completion_tokens chat_template chat_template_kwargs
    documents add_generation_prompt continue_final_message mm_processor_kwargs media_io_kwargs modalities audio
    prediction verbosity web_search_options
"""


@pytest.mark.parametrize(("body", "names"), [(COMPLETION_BODY, SHARED + "prompt"), (CHAT_BODY, SHARED + CHAT_ONLY)])
def test_every_field_of_the_field_is_known(body: BodyType[Any], names: str) -> None:
    assert [name for name in names.split() if not body.knows(name)] == []


@pytest.mark.parametrize(
    ("field", "value", "neutral"),
    [
        ("beam_width", 4, 1),
        ("custom_params", {"a": 1}, {}),
        ("vllm_xargs", {"a": 1}, {}),
        ("lora_request", {"lora_name": "x"}, None),
        ("kv_transfer_params", {"do_remote_decode": True}, None),
        ("return_routed_experts", True, False),
        ("return_context_logits", True, False),
        ("return_generation_logits", True, False),
        ("logprob_start_len", 0, -1),
        ("top_p_min", 0.1, 0.0),
        ("prompt_ignore_length", 3, 0),
        ("truncation_side", "right", "left"),
        ("watermark", True, False),
    ],
)
def test_what_is_not_done_is_refused_by_name_and_taken_where_it_asks_for_nothing(
    server: RunningServer, field: str, value: object, neutral: object
) -> None:
    assert error_of(server.complete(max_tokens=1, **{field: value}), 400)["param"] == field
    assert error_of(server.chat(max_tokens=1, **{field: value}), 400)["param"] == field
    response = server.complete(max_tokens=1, **{field: neutral})
    assert response.status_code == 200
    assert "x-ignored-fields" not in response.headers


def test_hints_that_change_no_answer_are_taken(server: RunningServer) -> None:
    response = server.complete(max_tokens=1, session_id="s", custom_labels={"team": "a"})
    assert response.status_code == 200
    assert "x-ignored-fields" not in response.headers


def test_rid_is_another_name_for_the_request_id(server: RunningServer) -> None:
    assert server.complete(max_tokens=1, rid="abc").json()["id"] == "cmpl-abc"
    assert server.chat(max_tokens=1, rid="abc").headers["x-request-id"] == "abc"
    assert server.complete(max_tokens=1, rid="abc", request_id="def").json()["id"] == "cmpl-def"


def test_an_extra_key_keeps_prompts_apart_as_a_salt_does(server: RunningServer) -> None:
    def salt(**fields: str) -> str:
        assert server.chat(max_tokens=1, **fields).status_code == 200
        return str(server.engine.seen[-1].cache_salt)

    asked = [{}, {"extra_key": "a"}, {"cache_salt": "a"}, {"cache_salt": "a", "extra_key": "b"}, {"extra_key": "ab"}]
    assert len({salt(**fields) for fields in asked}) == len(asked)
    assert salt(extra_key="a") == salt(extra_key="a", cache_salt="")
    assert error_of(server.complete(max_tokens=1, extra_key="x" * 200), 400)["param"] == "extra_key"


@pytest.mark.parametrize("interval", [1, 4, 1000])
def test_a_stream_interval_makes_fewer_events_of_the_same_text(server: RunningServer, interval: int) -> None:
    for stream in (
        server.stream_completion(max_tokens=21, stream_interval=interval, return_token_ids=True),
        server.stream_chat(max_tokens=21, stream_interval=interval, return_token_ids=True),
        server.stream_completion(max_tokens=21, stream_interval=interval, n=3, logprobs=1),
    ):
        for index, text in stream.texts.items():
            assert text == letters(21, index)
            assert stream.num_deltas[index] <= 1 + -(-20 // interval)
    assert server.complete(max_tokens=21, stream_interval=interval).json()["choices"][0]["text"] == letters(21)


@pytest.mark.parametrize("interval", [0, -1])
def test_a_stream_interval_below_one_is_refused(server: RunningServer, interval: int) -> None:
    error = error_of(server.complete(max_tokens=1, stream=True, stream_interval=interval), 400)
    assert error["param"] == "stream_interval"


class Told:
    """Deltas one by one, then a failure or the end."""

    def __init__(self, deltas: list[list[Delta]], failure: Exception | None = None) -> None:
        self._deltas = deltas
        self._failure = failure

    async def next(self, timeout_s: float) -> list[Delta] | None:
        if self._deltas:
            return self._deltas.pop(0)
        if self._failure is not None:
            raise self._failure
        return None


def delta(text: str, finish_reason: FinishReason | None = None, prompt_index: int = 0) -> Delta:
    ids = tuple(text.encode())
    output = RequestOutput(
        request_id="r", text=text, token_ids=ids, usage=Usage(1, 0, len(ids)), finish_reason=finish_reason
    )
    return Delta(prompt_index, output)


def texts(deltas: list[Delta] | None) -> list[tuple[int, str]]:
    return [(delta.prompt_index, delta.output.text) for delta in deltas or ()]


def test_only_the_middle_of_a_sequence_is_held_back() -> None:
    async def main() -> None:
        source = Told(
            [
                [delta("a")],
                [delta("b"), delta("x", prompt_index=1)],
                [],
                [delta("c")],
                [delta("d")],
                [delta("e"), delta("y", FinishReason.STOP, prompt_index=1)],
                [delta("f", FinishReason.STOP)],
            ]
        )
        spaced = SpacedDeltas(source, 3)
        heard = [texts(deltas) for deltas in [await spaced.next(1.0) for _ in range(6)]]
        assert heard == [[(0, "a")], [(1, "x")], [], [(0, "bcd")], [(1, "y")], [(0, "ef")]]
        assert await spaced.next(1.0) is None

    asyncio.run(main())


def test_what_is_held_back_when_the_generation_fails_comes_before_the_failure() -> None:
    async def main() -> None:
        spaced = SpacedDeltas(Told([[delta("a")], [delta("b")]], RequestFailed("no")), 10)
        assert texts(await spaced.next(1.0)) == [(0, "a")]
        assert texts(await spaced.next(1.0)) == [(0, "b")]
        for _ in range(2):
            with pytest.raises(RequestFailed):
                await spaced.next(1.0)

    asyncio.run(main())
