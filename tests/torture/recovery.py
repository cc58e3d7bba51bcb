"""How long a server is away when its engine is killed: ``python -m tests.torture.recovery MODEL``. Times in seconds."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import httpx

from tests.server.served_process import ServedProcess, served

PATIENCE_S = 120.0


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
    """Kill the engine under a stream; what a prober and the stream's reader see."""
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
    return {"unready_after_s": unready_s, "ready_again_after_s": ready_s, "longest_gap_in_stream_s": round(gap_s, 3)}


def _seconds_until(http: httpx.Client, url: str, status: int, since: float) -> float:
    while http.get(url).status_code != status:
        time.sleep(0.002)
    return round(time.monotonic() - since, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with served(Path(arguments.model), "--kv-cache-bytes", "256MiB", "--threads", "2") as server:
        figures = measure(server)
    print(json.dumps(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
