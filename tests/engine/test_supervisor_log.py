"""What an operator reads about the lives of the engine process: every surprise once, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from headrace.core.errors import ConfigError, EngineDead
from tests.engine.conditions import eventually
from tests.engine.supervised import collect, new_supervisor, pid_of, supervised
from tests.fakes_engine import make_request


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")


def test_a_failure_that_start_raises_is_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="no such model"):
            await new_supervisor("config-error").start()

    asyncio.run(main())
    assert caplog.records == []


def test_a_start_that_is_interrupted_logs_no_killed_engine(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        supervisor = new_supervisor("endless-loading")
        starting = asyncio.create_task(supervisor.start())
        await eventually(lambda: supervisor.engine_pid is not None)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(main())
    assert caplog.records == []


def test_an_engine_that_dies_without_a_word_while_starting_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with pytest.raises(EngineDead, match="died 3 times"):
            await new_supervisor("killed-while-loading").start()

    asyncio.run(main())
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 3
    assert all("was killed by SIGKILL" in error for error in errors)


def test_a_restart_is_told_from_the_death_to_the_next_ready(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            await collect(supervisor, make_request())
            assert supervisor.last_stats is not None
            pid = pid_of(supervisor)
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not supervisor.is_ready)
            await eventually(lambda: supervisor.is_ready)
            assert supervisor.last_stats is None, "what a dead engine said last is no news of the living one"
            told = [(record.levelname, record.getMessage()) for record in caplog.records]
            assert told[0] == ("ERROR", f"the engine process (pid {pid}) was killed by SIGKILL")
            assert told[-1] == ("INFO", "the engine is ready again (restart 1)")

    asyncio.run(main())
    assert caplog.records[-1].levelname == "INFO", "the end that was asked for is no error"
    assert "exited with code 0" in caplog.records[-1].getMessage()
