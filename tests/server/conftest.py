"""One server per test module: its scripted engine is reset between tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.fakes import ScriptedClient, alphabet
from tests.server.harness import RunningServer, running_server


@pytest.fixture(scope="module")
def module_server() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def server(module_server: RunningServer) -> Iterator[RunningServer]:
    """A running server over a ``ScriptedClient`` that plays the alphabet."""
    yield module_server
    engine: ScriptedClient = module_server.engine
    engine.release()
    engine.script = alphabet
    engine.is_ready, engine.dies = True, False
    engine.fail_at, engine.cached, engine.max_queued = None, 0, 256
    engine.seen.clear()
    engine.aborted.clear()
