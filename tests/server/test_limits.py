"""What a request may weigh, where it may come from, and how slowly: over raw sockets."""

from __future__ import annotations

import gzip
import json
import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import (
    RunningServer,
    encode,
    error_of,
    eventually,
    post_bytes,
    read_to_end,
    read_until,
    running_server,
)

BODY = encode({"prompt": "x", "max_tokens": 1})
QUICK: dict[str, Any] = {"max_connections": 8, "header_read_s": 0.2, "body_read_s": 0.3, "write_stall_s": 1.0}


def status_of(answer: bytes) -> int:
    """The status of a raw response, whose body must be one error in OpenAI's shape unless it is a 200."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status != 200:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    return status


def get(path: str, *headers: str, host: str | None = "localhost") -> bytes:
    lines = [f"GET {path} HTTP/1.1", *([f"host: {host}"] if host is not None else []), "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@pytest.mark.parametrize(("count", "status"), [(98, 200), (99, 431), (120, 431)])
def test_sec_12_too_many_headers_are_a_431(server: RunningServer, count: int, status: int) -> None:
    headers = [f"x-{i}: {i}" for i in range(count)]  # beside host and connection
    assert status_of(server.send_raw(get("/livez", *headers))) == status


@pytest.mark.parametrize(("size", "status"), [(16 << 10, 200), ((16 << 10) + 1, 431), (200_000, 431)])
def test_sec_12_long_headers_are_a_431(server: RunningServer, size: int, status: int) -> None:
    others = len("host: localhost\r\nconnection: close\r\nx-forwarded-for: \r\n")
    assert status_of(server.send_raw(get("/livez", "x-forwarded-for: " + "1" * (size - others)))) == status


def test_sec_12_headers_without_end_are_cut_off_early(server: RunningServer) -> None:
    with server.connect() as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-long: ")
        sent = 0
        try:
            while sent < 64 << 20:
                sent += sock.send(b"1" * 65536)
        except ConnectionError:
            pass
        assert sent < 16 << 20, "the server stops reading long before"
    assert server.http.get("/livez").status_code == 200


def test_sec_12b_a_million_tiny_chunks_are_cut_off(server: RunningServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    start = time.monotonic()
    answer = server.send_raw(head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n")
    assert time.monotonic() - start < 20.0
    assert answer == b"" or status_of(answer) == 413
    assert server.http.get("/livez").status_code == 200


def test_sec_13_a_body_that_announces_too_much_is_refused_unread() -> None:
    with running_server(max_body_bytes=2000) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        assert status_of(server.send_raw(head + b"content-length: 2001\r\n\r\n")) == 413
        assert status_of(server.send_raw(head + b"content-length: 99999999999999999\r\n\r\n")) == 413
        at_limit = BODY + b" " * (2000 - len(BODY))
        assert server.http.post("/v1/completions", content=at_limit, headers=JSON).status_code == 200


JSON = {"content-type": "application/json"}


def test_sec_13_a_chunked_body_is_counted_as_it_comes() -> None:
    with running_server(max_body_bytes=2000) as server:
        parts = [BODY, *[b" " * 100] * 30]
        response = server.http.post("/v1/completions", content=iter(parts), headers=JSON)
        assert error_of(response, 413)["code"] == "body_too_large"
        assert server.http.post("/v1/completions", content=iter(parts[:10]), headers=JSON).status_code == 200


def test_sec_13_compressed_bodies_are_refused(server: RunningServer) -> None:
    response = server.http.post(
        "/v1/completions", content=gzip.compress(BODY), headers={**JSON, "content-encoding": "gzip"}
    )
    error_of(response, 415)


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_sec_15_a_web_form_cannot_post(server: RunningServer, media_type: str | None) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    for path in ("/v1/completions", "/tokenize"):
        error_of(server.http.post(path, content=BODY, headers=headers), 415)


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_json_however_it_is_spelled(server: RunningServer, media_type: str) -> None:
    response = server.http.post("/v1/completions", content=BODY, headers={"content-type": media_type})
    assert response.status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1:1", "[::1]"])
def test_sec_15_local_hosts_are_known(server: RunningServer, host: str) -> None:
    assert status_of(server.send_raw(get("/livez", host=host))) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.example", "localhost:80:80", "[::1", "", "a b", "é"],
)
def test_sec_15_other_hosts_are_refused(server: RunningServer, host: str) -> None:
    assert status_of(server.send_raw(get("/livez", host=host))) == 400


def test_sec_15_a_missing_or_double_host_is_refused(server: RunningServer) -> None:
    assert status_of(server.send_raw(get("/livez", host=None))) == 400
    assert status_of(server.send_raw(get("/livez", "host: localhost"))) == 400


def test_hosts_can_be_allowed() -> None:
    with running_server(allowed_hosts=("llm.example",)) as server:
        assert status_of(server.send_raw(get("/livez", host="llm.example:80"))) == 200
        assert status_of(server.send_raw(get("/livez", host="other.example"))) == 400
    with running_server(allowed_hosts=("*",)) as server:
        assert status_of(server.send_raw(get("/livez", host="anything.example"))) == 200


def test_no_web_page_of_another_origin_is_let_in(server: RunningServer) -> None:
    response = server.http.options(
        "/v1/completions", headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
    )
    assert response.status_code == 405
    response = server.http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert not any(name.startswith("access-control") for name in response.headers)


TOOL = {"type": "function", "function": {"name": "f"}}
MESSAGE = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def narrow() -> Iterator[RunningServer]:
    """A server whose every limit on a request is small."""
    with running_server(
        max_n=2,
        max_logprobs=3,
        max_stop_strings=2,
        max_stop_chars=4,
        max_cache_salt_chars=5,
        max_prompts=3,
        max_messages=2,
        max_tools=1,
        max_json_depth=6,
    ) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "field", "at_limit", "beyond", "flag"),
    [
        ("/v1/completions", "n", 2, 3, "--max-n"),
        ("/v1/completions", "logprobs", 3, 4, "--max-logprobs"),
        ("/v1/completions", "prompt_logprobs", 3, 4, "--max-logprobs"),
        ("/v1/completions", "stop", ["?", "!"], ["?", "!", "."], "--max-stop-strings"),
        ("/v1/completions", "stop", ["????"], ["?????"], "--max-stop-chars"),
        ("/v1/completions", "cache_salt", "12345", "123456", "--max-cache-salt-chars"),
        ("/v1/completions", "extra_key", "1234", "12345", "--max-cache-salt-chars"),
        ("/v1/completions", "prompt", ["x"] * 3, ["x"] * 4, "--max-prompts"),
        ("/v1/completions", "extra", [[[[[]]]]], [[[[[[]]]]]], "6 levels"),
        ("/v1/chat/completions", "top_logprobs", 3, 4, "--max-logprobs"),
        ("/v1/chat/completions", "messages", [MESSAGE] * 2, [MESSAGE] * 3, "--max-messages"),
        ("/v1/chat/completions", "tools", [TOOL], [TOOL, TOOL], "--max-tools"),
        ("/generate", "text", ["x"] * 3, ["x"] * 4, "--max-prompts"),
        ("/generate", "input_ids", [[97]] * 3, [[97]] * 4, "--max-prompts"),
    ],
)
def test_a_limit_lets_its_value_in_and_names_its_flag_at_the_next(
    narrow: RunningServer, path: str, field: str, at_limit: object, beyond: object, flag: str
) -> None:
    common: dict[str, object] = {
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/chat/completions": {"messages": [MESSAGE], "max_tokens": 1, "logprobs": True},
        "/generate": {"sampling_params": {"max_new_tokens": 1}},
    }[path]
    assert narrow.post(path, {**common, field: at_limit}).status_code == 200
    error = error_of(narrow.post(path, {**common, field: beyond}), 400)
    assert flag in error["message"]
    assert error["param"] in (field, "prompt", None)


@pytest.mark.parametrize(("num_chunks", "status"), [(50, 200), (51, 413)])
def test_sec_12b_a_body_may_come_in_so_many_pieces(num_chunks: int, status: int) -> None:
    pieces = [BODY, *[b" "] * (num_chunks - 2)]  # the last chunk is the empty one
    data = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    with running_server(max_body_chunks=50) as server:
        assert status_of(server.send_raw(head + b"transfer-encoding: chunked\r\n\r\n" + data)) == status


def test_five_hundred_slow_clients_are_closed_and_hold_up_nobody() -> None:
    allow_files(2048)
    with running_server(header_read_s=1.0) as server:
        slow = [server.connect() for _ in range(500)]
        for sock in slow:
            sock.sendall(b"GET /livez HTTP/1.1\r\nx-slow: ")
        assert server.complete(max_tokens=5).status_code == 200
        for sock in slow:
            assert status_of(read_to_end(sock)) == 408
            sock.close()
        eventually(lambda: len(server.server.server_state.connections) <= 1)


def allow_files(count: int) -> None:
    """Let this process have so many files open, if its hard limit does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def test_garbage_is_a_400_in_our_words(server: RunningServer) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        assert status_of(server.send_raw(data)) == 400


def test_headers_that_dawdle_are_a_408_or_a_close() -> None:
    with running_server(**QUICK) as server:
        assert status_of(server.send_raw(b"GET /livez HTTP/1.1\r\nhost: local")) == 408
        assert server.send_raw(b"") == b"", "nothing sent, nothing answered"


def test_a_body_that_dawdles_is_a_408() -> None:
    with running_server(**QUICK) as server:
        assert status_of(server.send_raw(post_bytes("/v1/completions", BODY)[:-3])) == 408
        eventually(lambda: not server.server.server_state.tasks)


def test_an_idle_connection_is_kept_for_the_next_request() -> None:
    with running_server(**QUICK) as server, server.connect() as sock:
        for _ in range(2):
            sock.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200 OK" in read_until(sock, b"live")
            assert status_of(server.send_raw(b"GET")) == 408, "a request may not take as long as this took"
        assert server.context.config.keep_alive_s == 75


def test_slow_clients_do_not_keep_others_out() -> None:
    with running_server(**QUICK) as server:
        slow = [server.connect() for _ in range(5)]
        for sock in slow:
            sock.sendall(b"GET /livez HTTP/1.1\r\n")
        assert server.http.get("/livez").status_code == 200
        for sock in slow:
            assert status_of(read_to_end(sock)) == 408
            sock.close()


def test_connections_beyond_the_limit_are_a_503() -> None:
    with running_server(max_connections=3) as server:
        kept = [server.connect() for _ in range(3)]
        eventually(lambda: len(server.server.server_state.connections) == 3)
        answer = server.send_raw(b"")
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer
        for sock in kept:
            sock.close()
        eventually(lambda: not server.server.server_state.connections)
        assert server.http.get("/livez").status_code == 200


def test_no_server_header_is_sent(server: RunningServer) -> None:
    assert "server" not in server.http.get("/livez").headers


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    data = post_bytes("/v1/completions", BODY) + get("/livez")
    answer = server.send_raw(data)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"text_completion") < answer.index(b'"live"')
