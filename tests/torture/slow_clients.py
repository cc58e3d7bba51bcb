"""Five hundred clients that send a byte of their headers a second, and what others notice of them.

``python -m tests.torture slow`` asks small questions one after another, without and then beside the slow clients, and
waits for the server to close them. Times in seconds.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from tests.server.served_process import ServedProcess, served
from tests.tiny_model import write_tiny_model
from tests.torture.figures import print_report

NUM_SLOW = 500
NUM_QUESTIONS = 300
CLOSED_AFTER_S = 10.0
SLACK_S = 2.0
MAX_RATIO = 2.0
"""Of the questions' 99th percentile beside slow clients to that without; a shared machine alone makes some of it."""


class SlowClients:
    """Connections that dribble, from their beginning until the server has closed them all."""

    def __init__(self, port: int) -> None:
        self.held_s: list[float] = []
        self._port = port
        self._thread = threading.Thread(target=self._dribble)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _dribble(self) -> None:
        opened: dict[socket.socket, float] = {}
        with selectors.DefaultSelector() as selector:
            for _ in range(NUM_SLOW):
                sock = socket.create_connection(("127.0.0.1", self._port))
                sock.sendall(b"GET /livez HTTP/1.1\r\nx-slow: ")
                opened[sock] = time.monotonic()
                selector.register(sock, selectors.EVENT_READ)
            while opened:
                due = time.monotonic() + 1.0
                while opened and (left_s := due - time.monotonic()) > 0:
                    for key, _ in selector.select(left_s):
                        sock = key.fileobj  # type: ignore[assignment]
                        self._take(sock, opened, selector)
                for sock in opened:
                    with suppress(OSError):
                        sock.send(b"z")

    def _take(self, sock: socket.socket, opened: dict[socket.socket, float], selector: selectors.BaseSelector) -> None:
        """What the server says last, or that it says nothing more."""
        with suppress(OSError):
            if sock.recv(4096):
                return
        self.held_s.append(time.monotonic() - opened.pop(sock))
        selector.unregister(sock)
        sock.close()


def percentile_s(server: ServedProcess) -> float:
    """The 99th percentile of the time that small questions take."""
    times = []
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for _ in range(NUM_QUESTIONS):
            started = time.monotonic()
            response = http.post("/completions", json={"prompt": "x", "max_tokens": 1})
            times.append(time.monotonic() - started)
            assert response.status_code == 200, response.text
    return sorted(times)[int(0.99 * len(times))]


def measure(server: ServedProcess) -> dict[str, float]:
    percentile_s(server)
    alone_s = percentile_s(server)
    slow = SlowClients(int(server.root.rpartition(":")[2]))
    beside_s = percentile_s(server)
    slow.join()
    return {
        "p99 alone, ms": round(1000 * alone_s, 1),
        "p99 beside slow clients, ms": round(1000 * beside_s, 1),
        "slow clients closed": len(slow.held_s),
        "closed after at most, s": round(max(slow.held_s), 1),
        "closed after at least, s": round(min(slow.held_s), 1),
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture slow", description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * NUM_SLOW), hard))
    with tempfile.TemporaryDirectory() as folder, served(write_tiny_model(Path(folder))) as server:
        found = measure(server)
    is_good = (
        found["slow clients closed"] == NUM_SLOW
        and abs(found["closed after at most, s"] - CLOSED_AFTER_S) < SLACK_S
        and found["p99 beside slow clients, ms"] <= MAX_RATIO * found["p99 alone, ms"]
    )
    return print_report(found, arguments.json, is_good=is_good)
