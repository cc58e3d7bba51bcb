"""How long a server is away when its engine is killed, as a prober and as the reader of a stream see it."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.server.served_process import ServedProcess, served
from tests.torture.figures import print_report

PATIENCE_S = 120.0
UNREADY_WITHIN_S = 1.0
READY_WITHIN_S = 10.0


class TimedStream:
    """A long answer, with the moments of its events."""

    def __init__(self, server: ServedProcess) -> None:
        self.moments: list[float] = []
        self.body = b""
        self._thread = threading.Thread(target=self._read, args=(server,))
        self._thread.start()

    def longest_gap_s(self) -> float:
        self._thread.join(PATIENCE_S)
        return max(after - before for before, after in zip(self.moments, self.moments[1:], strict=False))

    def _read(self, server: ServedProcess) -> None:
        asked = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True, "seed": 1}
        with httpx.stream("POST", f"{server.url}/completions", json=asked, timeout=PATIENCE_S) as response:
            for part in response.iter_raw():
                self.body += part
                self.moments.append(time.monotonic())


def measure(server: ServedProcess) -> dict[str, float]:
    """Kill the engine under a stream; what a prober and the stream's reader see, in seconds."""
    stream = TimedStream(server)
    while len(stream.moments) < 20:
        time.sleep(0.01)
    pid = server.engine_pid()
    assert pid is not None
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with httpx.Client(timeout=PATIENCE_S) as http:
        unready_s = _seconds_until(http, f"{server.root}/readyz", 503, killed_at)
        ready_s = _seconds_until(http, f"{server.root}/readyz", 200, killed_at)
    gap_s = stream.longest_gap_s()
    assert stream.body.endswith(b"data: [DONE]\n\n")
    return {
        "not ready after, s": unready_s,
        "ready again after, s": ready_s,
        "longest gap in a stream, s": round(gap_s, 3),
    }


def _seconds_until(http: httpx.Client, url: str, status: int, since: float) -> float:
    while http.get(url).status_code != status:
        time.sleep(0.002)
    return round(time.monotonic() - since, 3)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture recovery", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with served(Path(arguments.model), "--kv-cache-bytes", "256MiB", "--threads", "2") as server:
        figures = measure(server)
    is_good = figures["not ready after, s"] < UNREADY_WITHIN_S and figures["ready again after, s"] < READY_WITHIN_S
    return print_report(figures, arguments.json, is_good=is_good)
