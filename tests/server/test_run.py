"""Starting and stopping: what is refused before anything is loaded, and how the end is."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError
from headrace.server.listener import listen, url_of
from headrace.server.run import serve
from tests.server.fakes import letters
from tests.server.harness import error_of, eventually, running_server
from tests.server.served_process import ServedProcess, served
from tests.tiny_model import write_tiny_model


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use.*--port") as caught:
            serve(ServeConfig(model="/nowhere", port=port))
        assert caught.value.field == "port"
        assert time.monotonic() - start < 2.0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_sec_31_other_addresses_need_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        listen(ServeConfig(host=host, port=0))


@pytest.mark.parametrize("settings", [{"api_key": ("k",)}, {"insecure": True}])
def test_sec_31_a_key_or_insecure_opens_them(settings: dict[str, object]) -> None:
    with listen(ServeConfig(host="0.0.0.0", port=0, **settings)) as sock:  # type: ignore[arg-type]
        assert url_of(sock).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_loopback_addresses_need_none(host: str) -> None:
    with listen(ServeConfig(host=host, port=0)) as sock:
        assert re.fullmatch(r"http://127\.\d+\.\d+\.\d+:\d+", url_of(sock))


def test_a_host_that_is_not_ours_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"example\.invalid") as caught:
        listen(ServeConfig(host="example.invalid", port=0, insecure=True))
    assert caught.value.field == "host"
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(ServeConfig(host="192.0.2.1", port=0, insecure=True))


def test_a_wrong_model_ends_the_start_with_a_config_error() -> None:
    with pytest.raises(ConfigError):
        serve(ServeConfig(model="./no-such-model", port=0))


def test_while_draining_new_requests_are_refused_and_running_ones_finish(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "headrace"), running_server() as server:
        server.engine.hold_at = 2
        answers: list[str] = []

        def ask() -> None:
            answers.append(server.complete(max_tokens=5).json()["choices"][0]["text"])

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: server.engine.live)
        server.server.begin_drain()
        assert "1 running requests have 30 s to finish; a second signal ends them now" in caplog.text
        response = server.complete()
        assert error_of(response, 503)["code"] == "service_unavailable"
        assert int(response.headers["retry-after"]) >= 1
        assert server.http.get("/readyz").status_code == 503
        assert server.http.get("/livez").status_code == 200
        server.engine.release()
        thread.join()
        assert answers == [letters(5)]
        eventually(lambda: server.server.should_exit, within_s=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def process(folder: Path) -> Iterator[ServedProcess]:
    with served(folder) as process:
        yield process


def test_a_served_model_answers_and_ends_with_sigterm(process: ServedProcess) -> None:
    child, url, lines = process.process, process.url, process.lines
    assert re.fullmatch(r"ready in \d+\.\d s", lines[-1])
    assert any(line.startswith("curl ") for line in lines)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    assert answer["model"] == Path(answer["model"]).name, "no path of the server in an answer"
    with httpx.stream(
        "POST", f"{url}/completions", json={"prompt": "x", "max_tokens": 100, "stream": True, "ignore_eos": True}
    ) as response:
        events = response.iter_lines()
        assert next(events).startswith("data: ")
        child.send_signal(signal.SIGTERM)
        rest = [line for line in events if line]
    assert rest[-1] == "data: [DONE]", "a running stream may finish"
    assert child.wait(timeout=20) == 0


def test_a_second_signal_does_not_wait(process: ServedProcess) -> None:
    child, url = process.process, process.url
    with httpx.stream(
        "POST", f"{url}/completions", json={"prompt": ["x"] * 8, "stream": True, "ignore_eos": True, "max_tokens": 400}
    ) as response:
        events = response.iter_lines()
        assert next(events)
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGINT)
        rest = [line for line in events if line]
    assert rest[-1] == "data: [DONE]" or '"error"' in rest[-1]
    assert child.wait(timeout=20) == 0


def test_nothing_large_is_loaded_before_the_engine_process_starts() -> None:
    script = (
        "import sys, headrace.server.run; print({'numpy', 'starlette', 'uvicorn', 'tokenizers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
