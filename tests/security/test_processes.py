"""SEC-22 and SEC-30: what of a running server can be reached, and whether its health tells the truth."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from headrace.engine.messages import MalformedMessage, decode_from_engine, decode_to_engine
from tests.server.harness import PATIENCE_S, RunningServer, error_of, eventually
from tests.server.served_process import ServedProcess, served

NUM_FRAMES = 50_000
_LISTENS = "0A"
_LOOPBACK_V4 = "0100007F"


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[ServedProcess]:
    with served(folder) as server:
        yield server


def sockets_of(pid: int) -> set[str]:
    """Inodes of the sockets a process holds."""
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def listening(pids: list[int], protocol: str) -> list[str]:
    """Local addresses at which these processes listen, as the kernel writes them (``0100007F:1F90``)."""
    inodes = set().union(*map(sockets_of, pids))
    rows = [line.split() for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[9] in inodes and (row[3] == _LISTENS or protocol.startswith("udp"))]


def test_sec_22_one_port_listens_and_it_is_the_public_one(process: ServedProcess) -> None:
    engine = process.engine_pid()
    assert engine is not None
    pids = [process.process.pid, engine]
    port = int(process.root.rpartition(":")[2])
    assert listening(pids, "tcp") == [f"{_LOOPBACK_V4}:{port:04X}"]
    for protocol in ("tcp6", "udp", "udp6"):
        assert listening(pids, protocol) == []


def test_sec_22_the_inner_socket_has_no_name_any_more(process: ServedProcess) -> None:
    """It had one, in a folder of mode 0700, until the engine was in (``tests/engine/test_transport.py``)."""
    engine = process.engine_pid()
    assert engine is not None
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    inner = [row for row in rows if row[6] in sockets_of(process.process.pid) | sockets_of(engine)]
    assert inner, "the two processes are connected by a unix socket"
    for path in [row[7] for row in inner if len(row) > 7]:
        assert not Path(path).exists()


@pytest.mark.parametrize("decode", [decode_from_engine, decode_to_engine])
def test_sec_22_garbage_is_no_message_and_nothing_else(decode: object) -> None:
    rng = random.Random(22)
    shapes: list[object] = [{}, [], ["Hello"], {"type": "Hello"}, {"type": 5, "token": None}, [1, [2, [3]]], "x" * 99]
    for number in range(NUM_FRAMES):
        body = rng.randbytes(rng.randrange(64)) if number % 2 else msgspec.msgpack.encode(rng.choice(shapes))
        if number % 3 == 0:
            body = body[: rng.randrange(len(body) + 1)]
        with pytest.raises(MalformedMessage):
            decode(body)  # type: ignore[operator]


def test_sec_22_an_http_request_to_the_port_cannot_speak_to_the_engine(process: ServedProcess) -> None:
    pid = process.engine_pid()
    address = ("127.0.0.1", int(process.root.rpartition(":")[2]))
    rng = random.Random(2)
    for _ in range(50):
        with socket.create_connection(address, timeout=PATIENCE_S) as sock:
            body = rng.randbytes(rng.randrange(1, 200))
            sock.sendall(len(body).to_bytes(4, "big") + body)
    assert httpx.get(f"{process.root}/livez").status_code == 200
    assert process.engine_pid() == pid


def test_sec_30_health_tells_of_a_stuck_engine_and_life_goes_on(process: ServedProcess) -> None:
    pid = process.engine_pid()
    assert pid is not None
    assert httpx.get(f"{process.root}/health").status_code == 200
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: httpx.get(f"{process.root}/health").status_code == 503, 25)
        for path in ("/readyz", "/v1/models"):
            assert httpx.get(process.root + path).status_code == 503
        assert httpx.get(f"{process.root}/livez").status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: httpx.get(f"{process.root}/health").status_code == 200, 60)
    body = {"prompt": "x", "max_tokens": 1}
    assert httpx.post(f"{process.url}/completions", json=body, timeout=PATIENCE_S).status_code == 200


@pytest.mark.parametrize("asked", [{"min_tokens": 10**12}, {"min_tokens": 10**12, "max_tokens": 10**12}, {"n": 10**9}])
def test_sec_30_a_request_that_would_never_end_is_refused(server: RunningServer, asked: dict[str, int]) -> None:
    error_of(server.complete(**asked), 400)
    assert server.http.get("/health").status_code == 200
