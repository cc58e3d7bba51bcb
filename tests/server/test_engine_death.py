"""The real server with its real engine process, killed under open streams."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.harness import PATIENCE_S, eventually
from tests.server.served_process import ServedProcess, served
from tests.server.sse import ParsedStream, check_stream
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    with served(folder, "--max-num-queued-reqs", "1000") as process:
        yield process


ASKED = {
    "prompt": ["x", "The quick", "the and " * 20],
    "n": 3,
    "max_tokens": 300,
    "temperature": 0.9,
    "seed": 5,
    "logprobs": 2,
    "frequency_penalty": 0.5,
    "ignore_eos": True,
    "min_tokens": 10,
}
NUM_CHOICES = 9


class OpenStream:
    """One stream of many answers, read by a thread; ``num_events`` are those that came so far."""

    def __init__(self, url: str) -> None:
        self.body = b""
        self.num_events = 0
        self._url = url
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> ParsedStream:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return check_stream(self.body, include_usage=True, num_choices=NUM_CHOICES)

    def _read(self) -> None:
        asked = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{self._url}/completions", json=asked, timeout=PATIENCE_S) as response:
            for part in response.iter_raw():
                self.body += part
                self.num_events += part.count(b"\n\n")


def test_b07_a_killed_engine_is_replaced_and_its_streams_go_on_as_if_nothing_had_been(server: ServedProcess) -> None:
    with httpx.Client(timeout=PATIENCE_S) as http:

        def status(path: str) -> int:
            return http.get(f"{server.root}{path}").status_code

        first_engine = server.engine_pid()
        assert first_engine is not None
        assert status("/readyz") == status("/v1/models") == 200
        undisturbed = http.post(f"{server.url}/completions", json=ASKED).json()

        stream = OpenStream(server.url)
        eventually(lambda: stream.num_events > 20)
        os.kill(first_engine, signal.SIGKILL)
        eventually(lambda: status("/readyz") == 503, within_s=1.0)
        assert status("/v1/models") == 503, "a list of models would be taken for readiness"
        assert status("/health") == 503
        assert status("/livez") == 200
        refused = http.post(f"{server.url}/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1

        check_equal(stream.finish(), undisturbed)
        eventually(lambda: status("/readyz") == 200)
        assert status("/v1/models") == 200
        assert server.engine_pid() not in (None, first_engine)
        metrics = http.get(f"{server.root}/metrics").text.splitlines()
        assert "headrace_engine_restarts_total 1.0" in metrics
        assert "headrace_requests_failed_total 0.0" in metrics


def test_answers_survive_an_engine_that_is_killed_at_random(server: ServedProcess) -> None:
    rng = random.Random(3)
    with httpx.Client(timeout=PATIENCE_S) as http:
        undisturbed = http.post(f"{server.url}/completions", json=ASKED).json()
        whole: list[dict[str, Any]] = []
        plain = threading.Thread(target=lambda: whole.append(http.post(f"{server.url}/completions", json=ASKED).json()))
        plain.start()
        busy = "headrace_num_requests_running 9.0"
        eventually(lambda: not plain.is_alive() or busy in http.get(f"{server.root}/metrics").text)
        streams = [OpenStream(server.url) for _ in range(2)]
        eventually(lambda: all(stream.num_events for stream in streams))
        for _ in range(3):
            target = streams[0].num_events + rng.randrange(1, 150)
            eventually(lambda: streams[0].num_events >= target or streams[0].is_over)  # noqa: B023 - waited for at once
            pid = server.engine_pid()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        for stream in streams:
            check_equal(stream.finish(), undisturbed)
        plain.join(PATIENCE_S)
        assert whole[0]["choices"] == undisturbed["choices"]


def check_equal(stream: ParsedStream, whole: dict[str, Any]) -> None:
    """A stream's concatenation is the answer in one piece, in text, reasons, log-probabilities and usage."""
    assert stream.error is None
    for choice in whole["choices"]:
        index = choice["index"]
        assert stream.texts[index] == choice["text"]
        assert stream.finish_reasons[index] == choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            assert [value for part in stream.logprobs[index] for value in part[name]] == values
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
