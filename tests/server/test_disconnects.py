"""Clients that go away: what they started ends, whatever they had asked for and however far it was."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from headrace.core.config import ServeConfig
from tests.server.fakes import ByteTokenizer, ScriptedClient, letters
from tests.server.harness import (
    MODEL,
    PATIENCE_S,
    RunningServer,
    encode,
    eventually,
    post_bytes,
    read_to_end,
    read_until,
    running_server,
    scripted_backend,
)


def send(server: RunningServer, path: str = "/v1/completions", **body: object) -> socket.socket:
    """Begin a request and leave the connection open."""
    sock = server.connect()
    default = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    sock.sendall(post_bytes(path, encode({**default, **body})))
    return sock


def test_b01_closing_a_stream_aborts_it(server: RunningServer) -> None:
    server.engine.hold_at = 3
    with send(server, "/v1/chat/completions", stream=True, max_tokens=400) as sock:
        read_until(sock, b'"content":"c"')
    eventually(lambda: server.engine.aborted and not server.engine.live)
    assert len(server.engine.aborted) == 1


def test_b02_closing_a_plain_request_aborts_it(server: RunningServer) -> None:
    server.engine.hold_at = 3
    with send(server, max_tokens=400):
        eventually(lambda: server.engine.live)
    eventually(lambda: server.engine.aborted and not server.engine.live)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("then", [b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x00 no request\r\n\r\n"])
def test_a_pipelined_request_is_aborted_too(then: bytes, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is not the last of its connection, which goes away or ends with something that is no request."""
    with running_server() as server, caplog.at_level(logging.WARNING):
        server.engine.hold_at = 3
        with send(server, stream=stream, max_tokens=400) as sock:
            eventually(lambda: server.engine.live)
            sock.sendall(then)
            if not then.startswith(b"GET"):
                read_to_end(sock)
        eventually(lambda: server.engine.aborted and not server.engine.live)
    assert len(server.engine.aborted) == 1
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.parametrize("stream", [True, False])
def test_b02_the_log_says_499(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    with running_server(log_requests=True) as server, caplog.at_level(logging.INFO, "headrace.server.access_log"):
        server.engine.hold_at = 2
        with send(server, stream=stream, max_tokens=400) as sock:
            eventually(lambda: server.engine.live)
            if stream:
                read_until(sock, b'"b"')
        eventually(lambda: "POST /v1/completions 499" in caplog.text)
        metrics = server.http.get("/metrics").text
    assert 'status_code="499"' in metrics


@pytest.mark.parametrize("stream", [True, False])
def test_b03_n_samples_end_together(server: RunningServer, stream: bool) -> None:
    server.engine.hold_at = 2
    with send(server, n=4, stream=stream, max_tokens=400) as sock:
        eventually(lambda: server.engine.live)
        if stream:
            read_until(sock, b'"index":3')
    eventually(lambda: server.engine.aborted and not server.engine.live)


@pytest.mark.parametrize("stream", [True, False])
def test_b03_a_list_of_prompts_ends_together(server: RunningServer, stream: bool) -> None:
    server.engine.hold_at = 2
    with send(server, prompt=["a", "b", "c"], stream=stream, max_tokens=400) as sock:
        eventually(lambda: len(server.engine.live) == 3)
        if stream:
            read_until(sock, b'"index":2')
    eventually(lambda: len(server.engine.aborted) == 3 and not server.engine.live)


def test_one_failing_prompt_ends_its_siblings(server: RunningServer) -> None:
    server.engine.max_queued = 2
    server.engine.hold_at = 1
    response = server.complete(prompt=["a", "b", "c"], max_tokens=400)
    assert response.status_code == 429
    eventually(lambda: not server.engine.live)
    assert len(server.engine.aborted) == 2


def test_b04_queued_clients_that_leave_do_not_disturb_the_running_one(server: RunningServer) -> None:
    server.engine.hold_at = 2
    with send(server, stream=True, max_tokens=26) as running:
        read_until(running, b'"b"')
        queued = [send(server, max_tokens=26) for _ in range(8)]
        eventually(lambda: len(server.engine.live) == 9)
        for sock in queued:
            sock.close()
        eventually(lambda: len(server.engine.live) == 1)
        server.engine.release()
        rest = read_until(running, b"[DONE]")
    assert len(server.engine.aborted) == 8
    for letter in letters(26)[2:]:
        assert f'"text":"{letter}'.encode() in rest or letter.encode() in rest


def test_b05_two_hundred_streams_closed_at_once_leave_nothing(server: RunningServer) -> None:
    finished = [send(server, stream=True, max_tokens=1) for _ in range(20)]
    for sock in finished:
        read_until(sock, b"[DONE]")
    server.engine.hold_at = 1
    sockets = [send(server, stream=True, max_tokens=100) for _ in range(180)]
    eventually(lambda: len(server.engine.live) == 180)
    for sock in [*sockets, *finished]:
        sock.close()
    eventually(lambda: not server.engine.live)
    assert len(server.engine.aborted) == 180
    server.engine.release()
    assert server.complete(max_tokens=3).json()["choices"][0]["text"] == "abc"


def test_a_client_that_breaks_off_its_body_costs_nothing(server: RunningServer) -> None:
    request = post_bytes("/v1/completions", encode({"prompt": "x"}))
    with server.connect() as sock:
        sock.sendall(request[:-4])
    assert server.complete(max_tokens=1).status_code == 200
    assert len(server.engine.seen) == 1


def test_b13_beyond_the_queue_the_answer_is_at_once_429(server: RunningServer) -> None:
    server.engine.max_queued = 8
    server.engine.hold_at = 0
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(send(server, n=4, max_tokens=5))
        eventually(lambda: len(server.engine.live) == 2)
        for _ in range(40):
            start = time.monotonic()
            response = server.complete(max_tokens=5)
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            assert time.monotonic() - start < 2.0
    eventually(lambda: not server.engine.live)


def test_b26_the_same_request_id_may_be_live_twice(server: RunningServer) -> None:
    server.engine.hold_at = 1
    head = "x-request-id: same-id\r\n"
    body = encode({"prompt": "x", "max_tokens": 3})
    with server.connect() as first, server.connect() as second:
        first.sendall(post_bytes("/v1/completions", body, head))
        second.sendall(post_bytes("/v1/completions", body, head))
        eventually(lambda: len(server.engine.live) == 2)
        server.engine.release()
        answers = [read_until(sock, b"usage") for sock in (first, second)]
    assert all(b"x-request-id: same-id" in answer and b'"id":"cmpl-same-id"' in answer for answer in answers)
    ids = [request.request_id for request in server.engine.seen]
    assert len(set(ids)) == 2
    assert all(request_id.startswith("cmpl-same-id-") for request_id in ids)


def test_b26_request_ids_are_made_sound(server: RunningServer) -> None:
    response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, x_request_id="a b/../c;" + "d" * 100)
    assert response.headers["x-request-id"] == "ab..c" + "d" * 59
    response = server.complete(max_tokens=1, request_id="mine\r\nx: y")
    assert response.headers["x-request-id"] == "minexy"
    assert response.json()["id"] == "cmpl-minexy"
    assert len(server.complete(max_tokens=1).headers["x-request-id"]) == 32


class HeldTokenizer(ByteTokenizer):
    """Encodes nothing until it is told to, as if the text were endless."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.may_end = threading.Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        return super().encode(text, add_special_tokens)


def test_b36_a_long_prompt_does_not_stall_health() -> None:
    tokenizer = HeldTokenizer()
    config = ServeConfig(served_model_name=(MODEL,))
    backend = replace(scripted_backend(ScriptedClient(), config), tokenizer=tokenizer)
    with running_server(backend) as server, ThreadPoolExecutor(1) as pool:
        try:
            answer = pool.submit(
                httpx.post, f"{server.url}/tokenize", json={"prompt": "x" * 10_000}, timeout=PATIENCE_S
            )
            assert tokenizer.began.wait(PATIENCE_S)
            assert all(server.http.get("/health").status_code == 200 for _ in range(3))
            assert not answer.done()
        finally:
            tokenizer.may_end.set()
        assert answer.result().json()["count"] == 10_000


def test_keep_alive_comments_come_while_a_stream_waits() -> None:
    with running_server(keep_alive_comment_s=0.02) as server:
        server.engine.hold_at = 0
        with send(server, stream=True, max_tokens=2) as sock:
            head = read_until(sock, b": keep-alive\n\n")
            assert b"200 OK" in head
            read_until(sock, b": keep-alive\n\n")
            server.engine.release()
            assert b'"a"' in read_until(sock, b"[DONE]")


def test_a_reader_that_stalls_is_cut_off() -> None:
    with running_server(write_stall_s=0.2) as server:
        server.engine.max_model_len = 1 << 20
        server.engine.script = lambda request, index, position: 97
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        body = {"prompt": ["x"] * 64, "stream": True, "max_tokens": 500, "logprobs": 5}
        with sock:
            sock.sendall(post_bytes("/v1/completions", encode(body)))
            eventually(lambda: server.engine.live)
            eventually(lambda: not server.engine.live)
            assert server.engine.aborted
            read_to_end(sock)
