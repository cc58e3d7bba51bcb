"""SGLang's native routes: what its programs and benchmark tools send, on a real engine and on a scripted one."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.fakes import ScriptedClient, letters
from tests.server.harness import MODEL, RunningServer, error_of, eventually, running_server
from tests.server.real_engine import metric, tiny_backend
from tests.tiny_model import write_tiny_model

GREEDY = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def real_server(folder: Path) -> Iterator[RunningServer]:
    with running_server(tiny_backend(folder)) as server:
        yield server


def generate(server: RunningServer, **body: Any) -> Any:
    response = server.post("/generate", body)
    assert response.status_code == 200, response.text
    return response.json()


# -- answers ---------------------------------------------------------------------------------------------


def test_one_prompt_gives_an_object_and_several_a_list(server: RunningServer) -> None:
    one = generate(server, text="hello", sampling_params={"max_new_tokens": 3})
    assert one["text"] == "abc"
    assert one["output_ids"] == list(b"abc")
    meta = one["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (5, 3, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    many = generate(server, text=["a", "bc"], sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2}])
    assert [each["text"] for each in many] == ["a", "ab"]
    assert [each["index"] for each in many] == [0, 1]
    ids = generate(server, input_ids=[[1, 2], [3]], sampling_params={"max_new_tokens": 2})
    assert [each["meta_info"]["prompt_tokens"] for each in ids] == [2, 1]
    several = generate(server, input_ids=[1, 2], sampling_params={"max_new_tokens": 2, "n": 2})
    assert [each["text"] for each in several] == ["ab", "bc"]


def test_the_default_is_sglangs_128_tokens(server: RunningServer) -> None:
    assert generate(server, text="x")["meta_info"]["completion_tokens"] == 128


def test_a_stop_says_what_matched(server: RunningServer) -> None:
    for stop, text in (("d", "abc"), (["zz", "c"], "ab")):
        found = generate(server, text="x", sampling_params={"stop": stop})
        assert found["text"] == text
        assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop if stop == "d" else "c"}


def test_a_stream_holds_the_whole_text_in_each_event(server: RunningServer) -> None:
    response = server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 6}, "stream": True})
    lines = [line for line in response.text.split("\n\n") if line.startswith("data:")]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line[5:]) for line in lines[:-1]]
    texts = [event["text"] for event in events]
    assert texts[-1] == letters(6)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])


def test_ids_name_answers(server: RunningServer) -> None:
    assert generate(server, text="x", rid="mine")["meta_info"]["id"] == "mine"
    many = generate(server, text=["x", "y"], rid=["one", "two"], sampling_params={"max_new_tokens": 1})
    assert [each["meta_info"]["id"] for each in many] == ["one", "two"]


# -- log-probabilities -----------------------------------------------------------------------------------


def test_no_new_tokens_only_computes_the_prompt(real_server: RunningServer) -> None:
    found = generate(real_server, text="Hello there", sampling_params={"max_new_tokens": 0})
    assert (found["text"], found["output_ids"]) == ("", [])
    assert found["meta_info"]["completion_tokens"] == 0
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_logprobs_of_a_prompts_end_equal_those_of_all_of_it(real_server: RunningServer) -> None:
    body = {"text": "Some text to score", "return_logprob": True, "sampling_params": {"max_new_tokens": 0}}
    whole = generate(real_server, **body, logprob_start_len=0, top_logprobs_num=2)["meta_info"]
    token_ids = [entry[1] for entry in whole["input_token_logprobs"]]
    assert len(token_ids) == whole["prompt_tokens"]
    assert whole["input_token_logprobs"][0][0] is None
    assert [len(top) for top in whole["input_top_logprobs"][1:]] == [2] * (len(token_ids) - 1)
    assert [len(top) for top in whole["output_top_logprobs"]] == [2], "what could come next is told all the same"
    assert whole["output_token_logprobs"] == []
    start = len(token_ids) - 4
    end = generate(real_server, **body, logprob_start_len=start, return_text_in_logprobs=True)["meta_info"]
    assert [entry[1] for entry in end["input_token_logprobs"]] == token_ids[start:]
    assert end["input_token_logprobs"][0][0] is None
    assert [entry[0] for entry in end["input_token_logprobs"][1:]] == pytest.approx(
        [entry[0] for entry in whole["input_token_logprobs"][start + 1 :]], abs=1e-5
    )
    assert "".join(entry[2] for entry in end["input_token_logprobs"]).strip() in body["text"]


def test_named_tokens_and_outputs_have_logprobs(real_server: RunningServer) -> None:
    found = generate(
        real_server,
        text="Hello",
        return_logprob=True,
        token_ids_logprob=[70, 80],
        sampling_params={**GREEDY, "max_new_tokens": 2},
    )["meta_info"]
    assert len(found["output_token_logprobs"]) == found["output_token_logprobs_length"] == 2
    assert [[entry[1] for entry in row] for row in found["output_token_ids_logprobs"]] == [[70, 80]] * 2
    assert found["input_token_logprobs"] == []


def test_regexes_are_followed(real_server: RunningServer) -> None:
    found = generate(real_server, text="A number: ", sampling_params={"regex": "[0-9]{3}", "max_new_tokens": 8})
    assert found["text"].isdigit()
    assert len(found["text"]) == 3


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "send either text or input_ids"),
        ({"text": "x", "input_ids": [1]}, "send either text or input_ids"),
        ({"input_ids": [1, [2]]}, "not a mixture"),
        ({"text": ["x", "y"], "sampling_params": [{}]}, "sampling_params has 1 entries for 2 prompts"),
        ({"text": ["x", "y"], "rid": ["a"]}, "rid has 1 entries for 2 prompts"),
        ({"text": "x", "sampling_params": {"max_tokens": 3}}, "unknown field max_tokens"),
        ({"text": "x", "sampling_params": {"stop_regex": "a+"}}, "stop_regex is not supported"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": 5}, "logprob_start_len is 5 but the prompt has 1"),
        ({"text": "x", "image_data": "y"}, "image_data is not supported here"),
        ({"text": "x", "sampling_params": {"temperature": -1}}, "temperature is -1"),
    ],
)
def test_what_cannot_be_done_is_refused(server: RunningServer, body: dict[str, Any], message: str) -> None:
    assert message in error_of(server.post("/generate", body), 400)["message"]


# -- around it -------------------------------------------------------------------------------------------


def test_the_model_and_the_server_say_what_they_are(server: RunningServer) -> None:
    for path in ("/get_model_info", "/model_info"):
        info = server.http.get(path).json()
        assert info["model_path"] == MODEL
        assert info["is_generation"] is True
    for path in ("/server_info", "/get_server_info"):
        info = server.http.get(path).json()
        assert info["settings"]["port"] == 8000
        assert info["max_total_num_tokens"] == 64 * 16
        assert not {"api_key", "admin_key", "tenant"} & info["settings"].keys()


def test_health_is_shown_by_a_token(real_server: RunningServer) -> None:
    before = metric(real_server, "headrace_generation_tokens_total")
    assert real_server.http.get("/health_generate").status_code == 200
    assert metric(real_server, "headrace_generation_tokens_total") == before + 1


def test_a_flushed_cache_is_empty(real_server: RunningServer) -> None:
    body = {"text": "x" * 100, "sampling_params": GREEDY}
    generate(real_server, **body)
    assert generate(real_server, **body)["meta_info"]["cached_tokens"] > 0
    assert real_server.post("/flush_cache", {}).status_code == 200
    assert generate(real_server, **body)["meta_info"]["cached_tokens"] == 0


def test_a_request_is_ended_by_its_id(server: RunningServer) -> None:
    engine: ScriptedClient = server.engine
    engine.hold_at = 3
    found: list[Any] = []
    for path, body in (
        ("/generate", {"text": "x", "rid": "mine"}),
        ("/v1/completions", {"prompt": "x", "rid": "mine", "max_tokens": 50}),
    ):
        thread = threading.Thread(target=lambda path=path, body=body: found.append(server.post(path, body).json()))
        thread.start()
        eventually(lambda: len(server.engine.live) == 1)
        assert server.post("/abort_request", {"rid": "other"}).status_code == 200
        assert len(engine.live) == 1
        assert server.post("/abort_request", {"rid": "mine"}).status_code == 200
        eventually(lambda: engine.aborted)
        engine.release()
        thread.join()
        engine.aborted.clear()
        engine.hold_at = 3
    assert "rid is empty" in error_of(server.post("/abort_request", {}), 400)["message"]


def test_a_request_is_ended_by_its_owner_or_the_operator_alone() -> None:
    """Clients choose ids, so another's can be guessed."""
    with running_server(tenant=("ann key=ka", "bob key=kb"), admin_key=("boss",)) as server:
        engine: ScriptedClient = server.engine
        engine.hold_at = 3

        def ask() -> None:
            server.post("/generate", {"text": "x", "rid": "1"}, authorization="Bearer ka")

        for owner in ("ka", "boss"):
            thread = threading.Thread(target=ask)
            thread.start()
            eventually(lambda: len(engine.live) == 1)
            server.post("/abort_request", {"rid": "1"}, authorization="Bearer kb")
            assert len(engine.live) == 1
            server.post("/abort_request", {"rid": "1"}, authorization=f"Bearer {owner}")
            eventually(lambda: not engine.live)
            engine.release()
            thread.join()
            engine.hold_at = 3


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_sec_15_no_link_in_a_web_page_clears_caches(server: RunningServer, method: str, site: str) -> None:
    response = server.http.request(method, "/flush_cache", headers={"sec-fetch-site": site})
    assert error_of(response, 403)["code"] == "forbidden"
    assert server.http.request(method, "/flush_cache", headers={"sec-fetch-site": "none"}).status_code == 200


def test_only_the_operator_clears_caches_and_ends_all_requests() -> None:
    routes = (("/flush_cache", {}), ("/abort_request", {"abort_all": True}))
    with running_server(api_key=("client",)) as server:
        for path, body in routes:
            error = error_of(server.post(path, body, authorization="Bearer client"), 403)
            assert "--admin-key" in error["message"]
    with running_server(api_key=("client",), admin_key=("boss",)) as server:
        for path, body in routes:
            assert error_of(server.post(path, body, authorization="Bearer client"), 403)
            assert server.post(path, body, authorization="Bearer boss").status_code == 200
        assert server.engine.num_cleared == 1
        assert server.complete().status_code == 401
