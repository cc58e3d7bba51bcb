"""Where the time of a request went, as clients see it: the route, the header, the comment at a stream's end."""

from __future__ import annotations

import json
import math

import pytest

from headrace.cli.main import main
from headrace.core.request import RequestOutput, RequestTimes, Usage
from headrace.core.timeline import Phase, SequenceTimeline, Span
from headrace.server.generation import Delta
from headrace.server.timing_line import TimingLine
from tests.server.harness import RunningServer, error_of, running_server


def life(request_id: str, tenant: str = "") -> SequenceTimeline:
    return SequenceTimeline(
        request_id=request_id,
        index=0,
        tenant=tenant,
        service_class="default",
        state="stop",
        age_s=2.0,
        num_prompt_tokens=5,
        num_output_tokens=3,
        num_waiting=4,
        num_running=2,
        seconds={"queue": 2.0},
        spans=(Span(phase=Phase.QUEUE, start_s=0.0, duration_s=2.0, reasons={"kv_blocks": 2.0}),),
    )


def test_a_timeline_is_told_in_data_and_in_sentences(server: RunningServer) -> None:
    server.engine.timelines = {"mine": [life("chatcmpl-mine-12")]}
    reply = server.http.get("/v1/requests/mine/timeline")
    assert reply.status_code == 200
    body = reply.json()
    assert (body["object"], body["id"]) == ("request.timeline", "mine")
    [told] = body["sequences"]
    assert told["spans"] == [{"phase": "queue", "start_s": 0.0, "duration_s": 2.0, "reasons": {"kv_blocks": 2.0}}]
    assert body["summary"] == [
        "chatcmpl-mine-12 (stop) took 2.00 s: 2.00 s (100 %) in the queue.",
        "It came when 4 others waited and 2 ran and waited 2.00 s because the KV cache had no room for it (2.00 s).",
    ]


def test_a_request_nobody_knows_is_a_404_that_says_what_to_do(server: RunningServer) -> None:
    reply = server.http.get("/v1/requests/nobody/timeline")
    assert reply.status_code == 404
    assert "send an x-request-id" in error_of(reply, 404)["message"]


def test_an_engine_that_is_gone_is_a_503(server: RunningServer) -> None:
    server.engine.is_ready = False
    assert server.http.get("/v1/requests/mine/timeline").status_code == 503


def test_a_key_sees_its_own_tenants_requests_only() -> None:
    with running_server(tenant=("search key=k1", "crawl key=k2")) as server:
        server.engine.timelines = {"r": [life("chatcmpl-r-1", "search"), life("chatcmpl-r-2", "crawl")]}
        seen = {
            key: server.http.get("/v1/requests/r/timeline", headers={"authorization": f"Bearer {key}"})
            for key in ("k1", "k2")
        }
        assert [seq["tenant"] for seq in seen["k1"].json()["sequences"]] == ["search"]
        assert [seq["tenant"] for seq in seen["k2"].json()["sequences"]] == ["crawl"]
        assert server.http.get("/v1/requests/r/timeline").status_code == 401


def test_a_server_that_records_nothing_says_so() -> None:
    with running_server(enable_timelines=False) as server:
        reply = server.http.get("/v1/requests/mine/timeline")
        assert reply.status_code == 404
        assert "start it without --no-enable-timelines" in error_of(reply, 404)["message"]
        assert "x-headrace-timing" not in server.complete(max_tokens=2).headers
        response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True})
        assert b"x-headrace-timing" not in response.content


# -- the line ----------------------------------------------------------------------------------------


def test_a_whole_reply_carries_the_whole_line(server: RunningServer) -> None:
    line = server.complete(max_tokens=3).headers["x-headrace-timing"]
    assert [part.split("=")[0] for part in line.split(", ")] == ["queue", "prefill", "decode", "preempted", "cached"]


def test_a_stream_ends_with_the_whole_line_in_a_comment(server: RunningServer) -> None:
    response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": True})
    *_, comment, done, end = response.content.split(b"\n\n")
    assert comment.startswith(b": x-headrace-timing queue=")
    assert b"decode=" in comment
    assert (done, end) == (b"data: [DONE]", b"")


def line_of(*times: RequestTimes | None) -> str:
    line = TimingLine()
    for index, moment in enumerate(times):
        output = RequestOutput(request_id="r", index=index, usage=Usage(120, 96, 1), times=moment)
        line.observe([Delta(0, output)])
    return line.text()


def test_the_line_tells_what_is_over() -> None:
    assert line_of(None) == ""
    assert line_of(RequestTimes(10.0, 10.5, 11.5, math.nan)) == "queue=0.500, prefill=1.000, cached=96/120"
    whole = RequestTimes(10.0, 10.5, 11.5, 14.0, num_preemptions=1, preempted_s=0.75)
    assert line_of(whole) == "queue=0.500, prefill=1.000, decode=1.750, preempted=0.750, cached=96/120"


def test_a_reply_is_as_slow_as_its_slowest_sequence() -> None:
    fast, slow = RequestTimes(0.0, 0.0, 1.0, 2.0), RequestTimes(0.0, 3.0, 4.0, 9.0)
    assert (
        line_of(fast, slow)
        == line_of(slow, fast)
        == ("queue=3.000, prefill=1.000, decode=5.000, preempted=0.000, cached=96/120")
    )


# -- the verb ----------------------------------------------------------------------------------------


def test_why_prints_the_sentences(server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    server.engine.timelines = {"mine": [life("chatcmpl-mine-12")]}
    assert main(["why", "mine", "--url", f"{server.url}/v1", "--json", str(tmp_path / "why.json")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("chatcmpl-mine-12 (stop) took 2.00 s: 2.00 s (100 %) in the queue.\n")
    assert json.loads((tmp_path / "why.json").read_text())["sequences"][0]["request_id"] == "chatcmpl-mine-12"


def test_why_says_what_the_server_says(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "a/b c", "--url", server.url]) == 1
    assert "no request 'a/b c' runs" in capsys.readouterr().err


def test_why_says_that_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "x", "--url", "http://127.0.0.1:1"]) == 1
    assert "--url says where the server listens" in capsys.readouterr().err
    assert main(["why", "x", "--url", "localhost:8000"]) == 2
    assert "must be like http://127.0.0.1:8000" in capsys.readouterr().err
