"""One real server for the whole folder: the native engine over a tiny model, which must be idle after every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import RunningServer, eventually, running_server
from tests.server.real_engine import metric, tiny_backend
from tests.tiny_model import write_tiny_model

_BUSY = ("headrace_num_requests_running", "headrace_num_requests_waiting", 'headrace_kv_cache_blocks{state="used"}')


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def module_server(folder: Path) -> Iterator[RunningServer]:
    with running_server(tiny_backend(folder, compile_cache=False)) as server:
        yield server


@pytest.fixture
def server(module_server: RunningServer) -> Iterator[RunningServer]:
    """Answers before a test and after it, and holds nothing for it any more."""
    yield module_server
    eventually(lambda: all(metric(module_server, name) == 0 for name in _BUSY))
    assert module_server.complete(max_tokens=1).status_code == 200
