"""``headrace serve``: from a config to a running server, and to its end.

Owns the order of starting (the socket first, then everything that takes time, side by side) and of stopping.
It does not know routes or what is inside the engine process.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from headrace.checkpoint.reference import resolve_model
from headrace.core.config import EngineConfig, ServeConfig
from headrace.core.log_writer import log_handler
from headrace.core.progress import NullProgress, Progress
from headrace.engine.metrics import Metrics
from headrace.engine.supervisor import EngineSupervisor, SupervisorLimits
from headrace.server.listener import listen
from headrace.server.model_names import model_names

if TYPE_CHECKING:
    from headrace.server.serving import Serving

EXIT_TERMINATED = 128 + signal.SIGTERM


def serve(config: ServeConfig, progress: Progress | None = None) -> int:
    """Serve until told to stop, and return the process's exit code.

    Raises ``ConfigError`` or ``EngineDead`` if the server cannot start; nothing is left behind then.
    """
    _configure_logging(config.log_level)
    _show_stacks_on_demand()
    with listen(config) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_terminated(_serve(config, sock, progress or NullProgress())))


async def _until_terminated(serving: Coroutine[Any, Any, int]) -> int:
    """Run; a SIGTERM while starting ends it in order. Once it serves, the HTTP server takes the signals."""
    terminated = asyncio.Event()
    task = asyncio.create_task(serving)

    def terminate() -> None:
        terminated.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated.is_set():
            return EXIT_TERMINATED
        raise


async def _serve(config: ServeConfig, sock: socket.socket, progress: Progress) -> int:
    started = time.monotonic()
    path = await asyncio.to_thread(resolve_model, config.model, progress)
    metrics = Metrics(model_names(config)[0], config.metrics_compat)
    limits = SupervisorLimits(hang_limit_s=config.hang_timeout_s, max_resumptions=config.max_resumptions)
    supervisor = EngineSupervisor(_engine_config(config, path), metrics, limits=limits)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(supervisor.close)
        serving = await _start(supervisor, config, path, progress)

        def announce() -> None:
            block = serving.start_block(supervisor, sock)
            print(f"{block}\n\nready in {time.monotonic() - started:.1f} s", flush=True)

        await serving.run(supervisor, metrics, sock, announce)
    return 0


async def _start(supervisor: EngineSupervisor, config: ServeConfig, path: Path, progress: Progress) -> Serving:
    """Start the engine process and load the rest beside it; the first failure ends both."""
    engine = asyncio.create_task(supervisor.start(progress))
    loading = asyncio.create_task(asyncio.to_thread(_load_serving, config, path))
    try:
        done, _ = await asyncio.wait({engine, loading}, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        engine.cancel()
        loading.cancel()
        await asyncio.gather(engine, loading, return_exceptions=True)
    return loading.result()


def _load_serving(config: ServeConfig, path: Path) -> Serving:
    from headrace.server.serving import Serving

    return Serving.load(config, path)


def _engine_config(config: ServeConfig, path: Path) -> EngineConfig:
    """The part of the settings that the engine process gets: keys and hosts are none of its business."""
    settings = msgspec.structs.asdict(config) | {"model": str(path)}
    return EngineConfig(**{name: settings[name] for name in EngineConfig.__struct_fields__})


def _show_stacks_on_demand() -> None:
    """A crash in native code says where, and SIGUSR1 shows an operator what the server is doing."""
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
        faulthandler.register(signal.SIGUSR1, sys.__stderr__)


def _configure_logging(level: str) -> None:
    logging.basicConfig(
        handlers=[log_handler(sys.stderr)],
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if level != "debug":  # what clients send is no news, and its end of the story is in our own log
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
