"""Connections made to confuse, and cases made from the server's own description: short runs of what
``python -m tests.torture.hostile http`` does at length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.http_fuzz import fuzz
from tests.hostile.openapi import check_description
from tests.server.harness import RunningServer, eventually, running_server
from tests.server.real_engine import metric, tiny_backend

NUM_CONNECTIONS = 1000
EXAMPLES = 5


@pytest.fixture(scope="module")
def hurried(folder: Path) -> Iterator[RunningServer]:
    """A server that does not wait long for slow clients."""
    backend = tiny_backend(folder, compile_cache=False)
    with running_server(backend, header_read_s=0.3, body_read_s=0.3, max_body_bytes=1 << 20) as server:
        yield server


def test_whatever_bytes_come_the_answers_are_sound_http_and_no_500(hurried: RunningServer) -> None:
    report = asyncio.run(fuzz("127.0.0.1", hurried.port, 0, NUM_CONNECTIONS))
    assert report.failures == []
    assert report.num_connections == NUM_CONNECTIONS
    assert {200, 400, 404, 405, 408, 413, 431} <= set(report.statuses)
    eventually(lambda: not hurried.server.server_state.tasks)
    eventually(lambda: metric(hurried, 'headrace_kv_cache_blocks{state="used"}') == 0)


def test_every_operation_answers_as_it_is_described(hurried: RunningServer) -> None:
    report = check_description(hurried.url, EXAMPLES)
    assert report.failures == []
    assert report.statuses[200] > 15
    assert report.statuses[400] > 50
