"""One HTTP connection, with the limits that only the connection can keep.

Owns what happens before a request exists for the application: header bytes that never end, clients that send
or read too slowly, connections beyond the limit, bytes that are no HTTP. Builds on uvicorn's httptools
protocol and answers in the same error body as everything else. Times are seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from headrace.core.config import ServeConfig
from headrace.server.errors import HttpRefusal, refusal, unavailable
from headrace.server.limits import headers_too_large

_FULL_RETRY_S = 1.0

_MAX_PIPELINED = 16
"""Requests of one connection that wait for the one before them while more of it is read."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a connection may take and how much of it there may be.

    ``header_read_s`` runs from the connection's or the request's first moment to the end of its headers,
    ``body_read_s`` from there to the end of its body; ``write_stall_s`` is how long a client may not read. More pieces
    of a chunked body than ``max_body_chunks`` cost more than they carry.
    """

    max_connections: int
    max_header_bytes: int
    max_body_chunks: int
    header_read_s: float
    body_read_s: float
    write_stall_s: float


def limits_of(config: ServeConfig) -> ConnectionLimits:
    """The settings that a connection keeps."""
    return ConnectionLimits(
        max_connections=config.max_connections,
        max_header_bytes=config.max_header_bytes,
        max_body_chunks=config.max_body_chunks,
        header_read_s=config.header_read_s,
        body_read_s=config.body_read_s,
        write_stall_s=config.write_stall_s,
    )


class GuardedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol under ``ConnectionLimits``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._reads_headers = False
        self._num_header_bytes = 0
        self._num_chunks = 0
        self._open_cycles: list[RequestResponseCycle] = []

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(
                unavailable(f"the server has {self._limits.max_connections} open connections already", _FULL_RETRY_S)
            )
            return
        self._arm_read(self._limits.header_read_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_read()
        self._disarm_write()
        self._disconnect_cycles()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if not self._reads_headers or self._is_refused:
            return
        self._num_header_bytes += len(data)
        if self._num_header_bytes > self._limits.max_header_bytes:
            self._refuse(
                headers_too_large(f"the request's headers have more than {self._limits.max_header_bytes} bytes")
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._disarm_write()
        self._write_timer = self.loop.call_later(self._limits.write_stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._disarm_write()
        super().resume_writing()

    # the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reads_headers = True
        self._num_header_bytes = 0
        self._num_chunks = 0
        self._arm_read(self._limits.header_read_s, self._refuse_slow)

    def on_headers_complete(self) -> None:
        self._reads_headers = False
        self._arm_read(self._limits.body_read_s, self._refuse_slow)
        super().on_headers_complete()
        if self.cycle is not None:
            self._open_cycles = [cycle for cycle in self._open_cycles if not cycle.response_complete]
            self._open_cycles.append(self.cycle)
        if len(self.pipeline) <= _MAX_PIPELINED:
            self.flow.resume_reading()  # it was paused for the first that waits, and who reads nothing hears no goodbye

    def on_chunk_header(self) -> None:
        self._num_chunks += 1
        most = self._limits.max_body_chunks
        if self._num_chunks > most and not self._is_refused:
            message = f"the body comes in more than {most} chunks; send fewer, or without transfer-encoding"
            self._refuse(refusal(413, message, "body_too_large"))

    def on_message_complete(self) -> None:
        self._disarm_read()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(refusal(400, "the request is not valid HTTP/1.1", "invalid_http"))

    # refusing

    def _refuse_slow(self) -> None:
        self._refuse(refusal(408, "the request took too long to arrive; send it faster", "request_timeout"))

    def _refuse(self, error: HttpRefusal) -> None:
        """Answer and close, unless an answer to this or an earlier request is under way: then only close."""
        self._is_refused = True
        self._disarm_read()
        if not any(cycle.response_started and not cycle.response_complete for cycle in self._open_cycles):
            self.transport.write(_raw_response(error))
        self._disconnect_cycles()
        self.transport.close()

    def _disconnect_cycles(self) -> None:
        """Tell every request of this connection that is not answered that nobody waits for it.

        With pipelined requests the one that is being answered is not the last one, which is all that uvicorn knows.
        """
        for cycle in self._open_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _arm_read(self, seconds: float, action: Callable[[], None]) -> None:
        self._disarm_read()
        self._read_timer = self.loop.call_later(seconds, action)

    def _disarm_read(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _disarm_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _raw_response(error: HttpRefusal) -> bytes:
    """A whole HTTP/1.1 response that ends the connection."""
    body = error.reply.body()
    status = HTTPStatus(error.reply.status)
    headers = [(name, value) for name, value in error.reply.all_headers(len(body)) if name != b"connection"]
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in [*headers, (b"connection", b"close")]]
    return b"\r\n".join([*lines, b"", body])
