"""Faults of the machine and of the network, made real: a full disk, no descriptors left, connections that break."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.harness import eventually, post_bytes, read_until
from tests.server.served_process import ServedProcess, served
from tests.server.sse import check_stream
from tests.tiny_model import write_tiny_model
from tests.torture.processes import num_files, private_bytes

PATIENCE_S = 120.0
LONG = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing sends RST."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServedProcess]:
    with served(folder, "--max-num-seqs", "64", "--kv-cache-bytes", "8MiB") as running:
        yield running


def completion(server: ServedProcess, **asked: object) -> httpx.Response:
    body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, **asked}
    return httpx.post(f"{server.url}/completions", json=body, timeout=PATIENCE_S)


def connect(server: ServedProcess) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), PATIENCE_S)


def send(server: ServedProcess, **asked: object) -> socket.socket:
    sock = connect(server)
    sock.sendall(post_bytes("/v1/completions", json.dumps({**LONG, **asked}).encode()))
    return sock


def metric(server: ServedProcess, name: str) -> float:
    text = httpx.get(f"{server.root}/metrics", timeout=PATIENCE_S).text
    return float(text.partition(f"\n{name} ")[2].split()[0])


def is_idle(server: ServedProcess) -> bool:
    return (
        metric(server, "headrace_num_requests_running") == 0
        and metric(server, 'headrace_kv_cache_blocks{state="used"}') == 0
    )


def test_a_log_on_a_full_disk_stops_nobody(folder: Path) -> None:
    with open("/dev/full", "w") as full, served(folder, "--log-requests", stderr=full) as server:
        for _ in range(3):
            assert completion(server).status_code == 200
        pid = server.engine_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # its end and its successor are told to a log that takes nothing
        eventually(lambda: server.engine_pid() not in (pid, None))
        eventually(lambda: httpx.get(f"{server.root}/readyz", timeout=PATIENCE_S).status_code == 200)
        assert completion(server).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0


def test_a_server_without_descriptors_serves_those_who_are_in_and_all_others_later(folder: Path) -> None:
    with served(folder) as server, httpx.Client(timeout=PATIENCE_S) as inside:
        assert inside.get(f"{server.root}/livez").status_code == 200
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (num_files(server.process.pid) + 4, limits[1]))
        crowd = [connect(server) for _ in range(40)]
        body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}
        assert inside.post(f"{server.url}/completions", json=body).status_code == 200
        for sock in crowd:
            sock.close()
        eventually(lambda: _is_served(server))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        assert completion(server).status_code == 200
        assert server.process.poll() is None


def _is_served(server: ServedProcess) -> bool:
    try:
        return httpx.get(f"{server.root}/livez", timeout=1.0).status_code == 200
    except httpx.HTTPError:
        return False


def test_an_engine_that_gets_no_more_memory_answers_or_is_replaced(folder: Path) -> None:
    with served(folder, "--kv-cache-bytes", "8MiB") as server:
        pid = server.engine_pid()
        assert pid is not None
        taken = address_space_bytes(pid)
        resource.prlimit(pid, resource.RLIMIT_AS, (taken, taken))
        asked = {"prompt": ["the and " * 100] * 8, "n": 4, "max_tokens": 60, "logprobs": 20, "seed": 1}
        replies = [completion(server, **asked) for _ in range(4)]
        codes = {reply.json()["error"]["code"] for reply in replies if reply.status_code != 200}
        assert codes <= {"request_failed", "request_quarantined", "service_unavailable"}
        eventually(lambda: completion(server).status_code == 200, PATIENCE_S)
        eventually(lambda: is_idle(server), PATIENCE_S)


def address_space_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def test_a_connection_that_is_reset_in_the_middle_of_a_stream_ends_its_request(server: ServedProcess) -> None:
    for _ in range(10):
        with send(server) as sock:
            read_until(sock, b"data: ")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    eventually(lambda: is_idle(server))
    assert completion(server).status_code == 200


def test_a_thousand_disconnects_in_a_row_leave_nothing(server: ServedProcess) -> None:
    files = num_files(server.process.pid)
    for _ in range(1000):
        send(server).close()
    eventually(lambda: is_idle(server))
    eventually(lambda: num_files(server.process.pid) <= files + 1)
    assert completion(server).status_code == 200


def test_readers_that_do_not_read_grow_no_memory_and_delay_nobody(server: ServedProcess) -> None:
    """Their streams are some 2 MB each: log-probabilities of twenty alternatives a token. All of them end unread."""
    completion(server, logprobs=20)
    generated = "headrace_generation_tokens_total"
    before, start = private_bytes(server.process.pid), metric(server, generated)
    small = [connect(server) for _ in range(16)]
    with contextlib.ExitStack() as stack:
        for sock in small:
            stack.enter_context(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(post_bytes("/v1/completions", json.dumps({**LONG, "logprobs": 20}).encode()))
        replies: list[int] = []
        others = [threading.Thread(target=lambda: replies.append(completion(server).status_code)) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join(PATIENCE_S)
        assert replies == [200] * 4
        eventually(lambda: metric(server, generated) - start >= 16 * 400, PATIENCE_S)
        assert private_bytes(server.process.pid) - before < 32 << 20, "two megabytes for each who does not read"
    eventually(lambda: is_idle(server))


def test_a_reader_of_one_byte_at_a_time_gets_it_all(server: ServedProcess) -> None:
    with send(server, max_tokens=20) as sock:
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += sock.recv(1)
    body = received.partition(b"\r\n\r\n")[2]
    assert check_stream(b"".join(_chunks(body))).finish_reasons == {0: "length"}


def _chunks(body: bytes) -> Iterator[bytes]:
    """The content of a chunked body (RFC 9112, 7.1)."""
    while True:
        text, _, body = body.partition(b"\r\n")
        size = int(text, 16)
        if size == 0:
            return
        yield body[:size]
        body = body[size + 2 :]
