"""The real server with its real engine process, killed under open streams."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.server.harness import PATIENCE_S, eventually
from tests.server.served_process import ServedProcess, served
from tests.server.sse import check_stream
from tests.tiny_model import write_tiny_model

NUM_STREAMS, NUM_PROMPTS = 4, 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    with served(folder, "--max-num-queued-reqs", "1000") as process:
        yield process


@dataclass(frozen=True)
class EndedStream:
    """Everything a stream sent, and when it closed, in seconds on the monotonic clock."""

    body: bytes
    closed_at: float


class OpenStream:
    """A stream of many long answers, read by a thread; ``has_begun`` is set with its first bytes."""

    def __init__(self, url: str, ended: queue.SimpleQueue[EndedStream]) -> None:
        self.has_begun = threading.Event()
        self._url = url
        self._ended = ended
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        asked = {"prompt": ["x"] * NUM_PROMPTS, "max_tokens": 500, "ignore_eos": True, "stream": True}
        body = b""
        with httpx.stream("POST", f"{self._url}/completions", json=asked, timeout=PATIENCE_S) as response:
            for part in response.iter_raw():
                body += part
                self.has_begun.set()
        self._ended.put(EndedStream(body, time.monotonic()))


def test_b07_a_killed_engine_ends_its_streams_with_an_error_and_is_replaced(server: ServedProcess) -> None:
    with httpx.Client(timeout=PATIENCE_S) as http:

        def status(path: str) -> int:
            return http.get(f"{server.root}{path}").status_code

        first_engine = server.engine_pid()
        assert first_engine is not None
        assert status("/readyz") == status("/v1/models") == 200
        ended: queue.SimpleQueue[EndedStream] = queue.SimpleQueue()
        streams = [OpenStream(server.url, ended) for _ in range(NUM_STREAMS)]
        for stream in streams:
            assert stream.has_begun.wait(PATIENCE_S)

        killed_at = time.monotonic()
        os.kill(first_engine, signal.SIGKILL)
        eventually(lambda: status("/readyz") == 503, within_s=1.0)
        assert status("/v1/models") == 503, "a list of models would be taken for readiness"
        assert status("/health") == 503
        assert status("/livez") == 200
        refused = http.post(f"{server.url}/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1

        for stream in streams:
            stream.join()
        for _ in streams:
            end = ended.get_nowait()
            assert end.closed_at - killed_at < 2.0
            error = check_stream(end.body, num_choices=NUM_PROMPTS).error
            assert error is not None
            assert error["code"] == "engine_dead"

        eventually(lambda: status("/readyz") == 200)
        assert status("/v1/models") == 200
        second_engine = server.engine_pid()
        assert second_engine not in (None, first_engine)
        answer = http.post(f"{server.url}/completions", json={"prompt": "x", "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
        metrics = http.get(f"{server.root}/metrics").text.splitlines()
        assert "headrace_engine_restarts_total 1.0" in metrics
        (failed,) = [line.split()[1] for line in metrics if line.startswith("headrace_requests_failed_total ")]
        assert NUM_STREAMS <= float(failed) <= NUM_STREAMS * NUM_PROMPTS
