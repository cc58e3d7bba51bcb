"""Programs as data over HTTP, on a real engine with a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import program as sgl
from headrace.llm.offline import LLM
from headrace.program.ir import Fork, Gen, Program, SamplingChoice, Select, Text, to_json
from tests.server.harness import MODEL, RunningServer, encode, error_of, eventually, post_bytes, running_server
from tests.server.real_engine import TINY_SETTINGS, metric, tiny_backend
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def real_server(folder: Path) -> Iterator[RunningServer]:
    with running_server(tiny_backend(folder), keep_alive_comment_s=0.05) as server:
        yield server


@pytest.fixture
def server(real_server: RunningServer) -> Iterator[RunningServer]:
    yield real_server
    eventually(lambda: metric(real_server, 'headrace_kv_cache_blocks{state="used"}') == 0)


@sgl.function
def debate(s, topic):
    s += sgl.user(f"Debate {topic}.")
    s += sgl.assistant_begin()
    sides = s.fork(2)
    sides += ["For: " + sgl.gen("point", max_tokens=6), "Against: " + sgl.gen("point", max_tokens=6)]
    s += f"One said {sides[0]['point']}, one said {sides[1]['point']}. "
    s.branch(
        sgl.select("winner", choices=["for", "against"]),
        {"for": lambda s: _cheer(s, "yes"), "against": lambda s: _cheer(s, "no")},
    )
    s += sgl.assistant_end()
    sides.join()


def _cheer(s, word):
    s += f", {word}, since " + sgl.gen("why", max_tokens=5)


def ask(server: RunningServer, program: Program, **fields: Any) -> dict[str, Any]:
    body = {"program": json.loads(to_json(program)), "temperature": 0, **fields}
    response = server.post("/v1/programs", body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def events(response: Any) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_program_over_http_is_the_same_as_in_this_process(server: RunningServer, folder: Path) -> None:
    body = ask(server, debate.trace(), arguments={"topic": "tea"}, model=MODEL)
    with LLM(str(folder), **TINY_SETTINGS) as llm:
        state = llm.run(debate, "tea", temperature=0)
        assert body["text"] == state.text()
        assert body["messages"] == state.messages()
        captures = {name: capture["value"] for name, capture in body["captures"].items()}
        assert captures["fork1.0.point"] == state["point"][0]
        assert captures["fork1.1.point"] == state["point"][1]
        assert (captures["winner"], captures["why"]) == (state["winner"], state["why"])
        usage = state.usage
        assert (body["usage"]["calls"], body["usage"]["completion_tokens"]) == (
            usage.num_calls,
            usage.num_output_tokens,
        )
    assert body["captures"]["why"]["meta"]["finish_reason"]["type"] in ("length", "stop")


def test_a_stream_says_the_same_as_the_whole_reply(server: RunningServer) -> None:
    program = debate.trace(topic="tea")
    whole = ask(server, program)
    body = {"program": json.loads(to_json(program)), "temperature": 0, "stream": True}
    got = events(server.post("/v1/programs", body))
    assert got[-1]["type"] == "done"
    assert got[-1]["response"]["text"] == whole["text"]
    captures = {event["name"]: event["value"] for event in got if event["type"] == "capture"}
    assert captures == {name: capture["value"] for name, capture in whole["captures"].items()}
    for name in ("fork1.0.point", "why"):
        assert "".join(e["delta"] for e in got if e["type"] == "text" and e["name"] == name) == captures[name]


LONG = Gen(name="long", sampling=SamplingChoice(max_tokens=400, ignore_eos=True))


def test_a_client_that_leaves_ends_the_program(server: RunningServer) -> None:
    program = Program(body=(Text("x"), Fork("f", ((LONG,), (LONG,), (LONG,)))))
    for stream in (False, True):
        aborted = metric(server, "headrace_requests_aborted_total")
        sock = server.connect()
        body = {"program": json.loads(to_json(program)), "stream": stream}
        sock.sendall(post_bytes("/v1/programs", encode(body)))
        eventually(lambda: metric(server, "headrace_num_requests_running") == 3)
        sock.close()
        eventually(lambda before=aborted: metric(server, "headrace_requests_aborted_total") == before + 3)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (Program(body=(Text("x"),) * 5000), "5000 nodes but at most 4096|4097 nodes but at most 4096"),
        (Program(body=(Gen(sampling=SamplingChoice(max_tokens=70000)),)), "70000 tokens to generate but at most 65536"),
        (Program(body=(Fork("f", ((Text("x"),),) * 65),)), "65 branches in f but at most 64"),
        (Program(body=(Select(choices=()),)), "select needs choices"),
        (Program(body=(Gen(name="a b"),)), "the name 'a b' must be"),
        (Program(arguments=("topic",), body=()), "argument 'topic' is missing"),
    ],
)
def test_programs_beyond_their_bounds_are_refused(server: RunningServer, program: Program, message: str) -> None:
    response = server.post("/v1/programs", {"program": json.loads(to_json(program))})
    error = error_of(response, 400)
    assert any(part in error["message"] for part in message.split("|"))


WAITS_FOR_LATER = {
    "type": "branch",
    "on": {"type": "select", "choices": ["a"]},
    "cases": {"a": [{"type": "value", "name": "later"}]},
}


def test_the_operator_may_set_other_bounds() -> None:
    settings = {"max_program_nodes": 2, "max_program_depth": 1, "max_program_forks": 3, "max_program_tokens": 9}
    nested = Fork("f", ((Fork("g", ((Text("x"),),)),),))
    with running_server(**settings) as server:
        for body, message in (
            ((Text("x"),) * 3, "3 nodes but at most 2"),
            ((nested,), "2 levels of nesting but at most 1"),
            ((Fork("f", ((),) * 4),), "4 branches in f but at most 3"),
            ((Gen(sampling=SamplingChoice(max_tokens=10)),), "10 tokens to generate but at most 9"),
        ):
            response = server.post("/v1/programs", {"program": json.loads(to_json(Program(body=body)))})
            assert message in error_of(response, 400)["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"body": [{"type": "python", "code": "import os"}]}, "program.body[0].type: Invalid value 'python'"),
        ({"body": [{"type": "value", "name": "x"}]}, "nothing captures 'x'"),
        (
            {"body": [{"type": "text", "text": "x"}, WAITS_FOR_LATER, {"type": "gen", "name": "later"}]},
            "captures 'later'",
        ),
        ({"body": [{"type": "join", "fork": "x"}]}, "there is no fork 'x'"),
        ({"body": [{"type": "role_begin", "role": "root"}]}, "the role 'root' must be one of"),
        ({"body": [{"type": "role_end"}]}, "a message ends but none was begun"),
        ({"body": [{"type": "text", "text": "x" * 600}, {"type": "gen"}]}, "the prompt has"),
    ],
)
def test_what_is_no_program_says_where(server: RunningServer, body: dict[str, Any], message: str) -> None:
    for stream in (False, True):
        error = error_of(server.post("/v1/programs", {"program": body, "stream": stream}), 400)
        assert message in error["message"]


def test_deep_programs_are_refused_before_they_cost_anything(server: RunningServer) -> None:
    body: list[Any] = [{"type": "text", "text": "x"}]
    for level in range(12):
        body = [{"type": "fork", "name": f"f{level}", "branches": [body]}]
    assert "levels of nesting" in error_of(server.post("/v1/programs", {"program": {"body": body}}), 400)["message"]


def test_a_failure_after_the_first_event_is_an_event(server: RunningServer) -> None:
    program = Program(body=(Text("x"), Gen(name="a", sampling=SamplingChoice(max_tokens=3)), Text("y" * 600), Gen()))
    response = server.post("/v1/programs", {"program": json.loads(to_json(program)), "stream": True})
    assert response.status_code == 200
    last = [line for line in response.text.split("\n\n") if line.startswith("data: ")][-1]
    assert "the prompt has" in json.loads(last[6:])["error"]["message"]
