"""A supervisor over a fake child, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.core.config import EngineConfig
from headrace.core.request import Request, RequestOutput
from headrace.engine.metrics import Metrics
from headrace.engine.supervisor import EngineSupervisor, SupervisorLimits
from tests.engine.conditions import is_running
from tests.engine.fake_child import FAKE_CHILD

QUICK = SupervisorLimits(ping_interval_s=0.02, restart_delays_s=(0.0, 0.01), stop_grace_s=5.0)


def new_supervisor(
    model: str = "fake", limits: SupervisorLimits = QUICK, command: tuple[str, ...] = FAKE_CHILD
) -> EngineSupervisor:
    return EngineSupervisor(EngineConfig(model=model), Metrics("m"), command=command, limits=limits)


@asynccontextmanager
async def supervised(model: str = "fake", limits: SupervisorLimits = QUICK) -> AsyncIterator[EngineSupervisor]:
    """A started supervisor; checks that closing leaves no process."""
    supervisor = new_supervisor(model, limits)
    await supervisor.start()
    try:
        yield supervisor
    finally:
        pid = supervisor.engine_pid
        await supervisor.close()
        assert pid is None or not is_running(pid)
        assert not supervisor.is_ready


async def collect(supervisor: EngineSupervisor, request: Request) -> list[RequestOutput]:
    return [output async for output in supervisor.generate(request)]


def pid_of(supervisor: EngineSupervisor) -> int:
    pid = supervisor.engine_pid
    assert pid is not None
    return pid
