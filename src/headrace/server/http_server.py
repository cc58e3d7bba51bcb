"""The HTTP server around an application: uvicorn, with our connection limits and an orderly end.

On the first SIGTERM or SIGINT new requests get 503 with Retry-After while running ones may finish, for as long as
the drain timeout; then the engine is closed, which ends what still runs with an error event; then the sockets close. A
second signal skips the waiting.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import uvicorn
from starlette.applications import Starlette

from headrace.core.config import ServeConfig
from headrace.server.context import DrainSwitch
from headrace.server.http_protocol import GuardedHttpProtocol, limits_of

_CLOSE_CONNECTIONS_S = 1

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn's server with a drain. ``close_engine`` is awaited after it, before connections close."""

    def __init__(
        self,
        app: Starlette,
        config: ServeConfig,
        drain: DrainSwitch,
        close_engine: Callable[[], Awaitable[None]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(_uvicorn_config(app, config))
        self._app = app
        self._drain = drain
        self._close_engine = close_engine
        self._drain_timeout_s = config.drain_timeout_s
        self._drain_deadline: float | None = None
        self._tls = tls

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop.

        The application's lifespan is entered here: a task of its own, as uvicorn has it, is left over and complains
        when serving is cancelled before it has begun.
        """
        self.config.load()
        self.config.ssl = self._tls
        async with self._app.router.lifespan_context(self._app):
            await super().serve(sockets)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Take none: whoever runs the server has had its signals from the start, and hands them on."""
        return nullcontext()

    def handle_signal(self) -> None:
        """Begin to drain; the second time, stop now."""
        if self._drain.is_on:
            self.should_exit = True
            self.force_exit = True
            return
        self.begin_drain()

    def begin_drain(self) -> None:
        """Take no new work; exit when the running requests are done, or after the drain timeout."""
        self._drain.turn_on()
        self._drain_deadline = time.monotonic() + self._drain_timeout_s
        if num_running := len(self.server_state.tasks):
            logger.info(
                "shutting down: %d running requests have %g s to finish; a second signal ends them now",
                num_running,
                self._drain_timeout_s,
            )

    async def on_tick(self, counter: int) -> bool:
        if self._drain_deadline is not None:
            is_idle = not self.server_state.tasks
            if is_idle or time.monotonic() >= self._drain_deadline:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain.turn_on()
        await self._close_engine()
        await super().shutdown(sockets)


def _uvicorn_config(app: Starlette, config: ServeConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(GuardedHttpProtocol, limits=limits_of(config)),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(config.keep_alive_s),
        timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
    )
