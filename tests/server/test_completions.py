"""``/v1/completions``: every form of prompt, echo, log-probabilities, and their streams."""

from __future__ import annotations

import pytest

from tests.server.fakes import END, letters, spelling
from tests.server.harness import MODEL, RunningServer, error_of


def test_a_completion_is_openai_shaped(server: RunningServer) -> None:
    body = server.complete(max_tokens=5).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["model"] == MODEL
    assert body["choices"] == [
        {"index": 0, "text": "abcde", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_max_tokens_is_16_when_left_out(server: RunningServer) -> None:
    assert server.complete().json()["choices"][0]["text"] == letters(16)


def test_the_default_of_max_tokens_yields_to_the_context(server: RunningServer) -> None:
    body = server.complete(prompt="x" * 500).json()
    assert body["choices"][0]["text"] == letters(12)
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("hi", [[104, 105]]),
        (["hi", "yo"], [[104, 105], [121, 111]]),
        ([104, 105], [[104, 105]]),
        ([[104, 105], [33]], [[104, 105], [33]]),
    ],
)
def test_prompts_may_be_texts_or_token_ids(server: RunningServer, prompt: object, ids: list[list[int]]) -> None:
    body = server.complete(prompt=prompt, max_tokens=2).json()
    assert [request.prompt_token_ids for request in server.engine.seen] == ids
    assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert body["usage"]["completion_tokens"] == 2 * len(ids)


def test_choices_are_numbered_by_prompt_then_by_sample(server: RunningServer) -> None:
    stream = server.stream_completion(prompt=["x", "y"], n=3, max_tokens=4)
    assert stream.texts == {i: letters(4, i % 3) for i in range(6)}
    body = server.complete(prompt=["x", "y"], n=3, max_tokens=4).json()
    assert {choice["index"]: choice["text"] for choice in body["choices"]} == stream.texts


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 7},
        {"max_tokens": 7, "n": 3},
        {"max_tokens": 7, "echo": True},
        {"max_tokens": 7, "logprobs": 3},
        {"max_tokens": 7, "echo": True, "logprobs": 2, "n": 2},
        {"max_tokens": 7, "prompt": ["hello", "ab"], "echo": True, "logprobs": 2, "n": 2},
        {"max_tokens": 0, "echo": True},
        {"max_tokens": 0, "echo": True, "logprobs": 1},
        {"max_tokens": 20, "stop": ["defg"]},
        {"max_tokens": 20, "stop": "m", "include_stop_str_in_output": True},
        {"max_tokens": 20, "stop_token_ids": [ord("f")]},
        {"max_tokens": 5, "return_token_ids": True},
    ],
)
def test_a_streams_concatenation_is_the_whole_reply(server: RunningServer, body: dict[str, object]) -> None:
    whole = server.complete(**body).json()
    stream = server.stream_completion(**body, stream_options={"include_usage": True})
    assert stream.usage == whole["usage"]
    for choice in whole["choices"]:
        index = choice["index"]
        assert stream.texts[index] == choice["text"]
        assert stream.finish_reasons[index] == choice["finish_reason"]
        assert stream.stop_reasons[index] == choice["stop_reason"]
        assert stream.token_ids[index] == choice.get("token_ids", [])
        if choice["logprobs"] is not None:
            merged = {key: [x for part in stream.logprobs[index] for x in part[key]] for key in choice["logprobs"]}
            assert merged == choice["logprobs"]


def test_logprobs_name_the_chosen_token_and_its_rivals(server: RunningServer) -> None:
    logprobs = server.complete(max_tokens=3, logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [0.0, -0.25, -0.5],
        "tokens": ["a", "b", "c"],
        "top_logprobs": [{"a": 0.0, "b": -1.0}, {"b": -0.25, "c": -1.25}, {"c": -0.5, "d": -1.5}],
    }


def test_logprobs_zero_still_reports_the_chosen_token(server: RunningServer) -> None:
    logprobs = server.complete(max_tokens=1, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": 0.0}]


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_b39_echo_with_logprobs_counts_offsets_from_the_prompts_start(server: RunningServer, max_tokens: int) -> None:
    choice = server.complete(prompt="héllo", max_tokens=max_tokens, echo=True, logprobs=1).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "héllo" + letters(max_tokens)
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(logprob is not None for logprob in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == 6 + max_tokens, "é is two tokens here; the first of them adds no text"
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset : offset + len(token)] == token


def test_evaluation_tools_can_score_token_id_prompts(server: RunningServer) -> None:
    """As lm-eval asks: ids, echo, one token, logprobs of one rival; all prompts at once."""
    prompts = [list(b"the cat"), list(b"a dog ran")]
    body = server.complete(prompt=prompts, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1234).json()
    for choice, prompt in zip(body["choices"], prompts, strict=True):
        scores = choice["logprobs"]["token_logprobs"]
        assert scores[0] is None
        assert scores[1:-1] == [-(i % 4) / 4 for i in range(1, len(prompt))]
        tops = [max(top, key=top.__getitem__) for top in choice["logprobs"]["top_logprobs"][1:]]
        assert tops == choice["logprobs"]["tokens"][1:]


def test_max_tokens_zero_with_echo_returns_the_prompt_alone(server: RunningServer) -> None:
    body = server.complete(max_tokens=0, echo=True).json()
    assert body["choices"][0]["text"] == "hello"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0


def test_max_tokens_zero_without_echo_is_refused(server: RunningServer) -> None:
    assert error_of(server.complete(max_tokens=0), 400)["param"] == "max_tokens"


def test_prompt_logprobs_come_in_vllms_shape(server: RunningServer) -> None:
    choice = server.complete(prompt="abc", max_tokens=1, prompt_logprobs=1).json()["choices"][0]
    assert choice["prompt_logprobs"] == [
        None,
        {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}},
        {"99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}},
    ]
    error = error_of(server.complete(prompt_logprobs=1, stream=True), 400)
    assert error["param"] == "prompt_logprobs"


def test_token_ids_are_returned_when_asked_for(server: RunningServer) -> None:
    choice = server.complete(max_tokens=2, return_token_ids=True).json()["choices"][0]
    assert choice["token_ids"] == [97, 98]
    assert choice["prompt_token_ids"] == list(b"hello")
    stream = server.stream_completion(max_tokens=2, return_token_ids=True)
    assert stream.chunks[0]["choices"][0]["prompt_token_ids"] == list(b"hello")
    assert all("prompt_token_ids" not in chunk["choices"][0] for chunk in stream.chunks[1:])


def test_the_end_token_stops_and_adds_no_text(server: RunningServer) -> None:
    server.engine.script = spelling("done")
    choice = server.complete(max_tokens=50, logprobs=0).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("done", "stop", None)
    assert choice["logprobs"]["tokens"] == ["d", "o", "n", "e", ""]


def test_ignore_eos_goes_on_to_the_limit(server: RunningServer) -> None:
    server.engine.script = spelling("done")
    choice = server.complete(max_tokens=9, ignore_eos=True).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("done", "length")


def test_a_stop_token_is_named_as_the_reason(server: RunningServer) -> None:
    choice = server.complete(max_tokens=9, stop_token_ids=[ord("c")]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", ord("c"))


def test_best_of_is_taken_only_if_it_asks_for_nothing(server: RunningServer) -> None:
    assert server.complete(n=2, best_of=2).status_code == 200
    assert error_of(server.complete(n=1, best_of=2), 400)["param"] == "best_of"


def test_suffix_is_refused_with_a_remedy(server: RunningServer) -> None:
    error = error_of(server.complete(suffix="end"), 400)
    assert error["param"] == "suffix"
    assert "put the text into the prompt" in error["message"]
    assert server.complete(suffix=None).status_code == 200


def test_truncation_keeps_the_last_tokens(server: RunningServer) -> None:
    server.complete(prompt="0123456789", truncate_prompt_tokens=3, max_tokens=1)
    server.complete(prompt="x" * 5000, truncate_prompt_tokens=-1, max_tokens=12)
    assert server.engine.seen[0].prompt_token_ids == list(b"789")
    assert len(server.engine.seen[1].prompt_token_ids) == 500
    assert error_of(server.complete(truncate_prompt_tokens=0), 400)["param"] == "truncate_prompt_tokens"


def test_raw_prompts_may_spell_control_tokens(server: RunningServer) -> None:
    server.complete(prompt="<|start|>user", max_tokens=1)
    assert server.engine.seen[0].prompt_token_ids == [256, *b"user"]
    assert END == 257
