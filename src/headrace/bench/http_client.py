"""A small HTTP/1.1 client for measuring: bytes of a body as they arrive, with the moment of each.

Owns connections: opening, keeping alive, TLS. It has no timeouts (callers cancel), reads no JSON and retries nothing
that a server has begun to answer. It is our own because a client that measures must cost less than what it measures:
there is one callback per read of the socket, and no task, queue or decoder object in between.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError

MAX_HEADER_BYTES = 64 << 10
MAX_IDLE_S = 2.0
"""A connection that has been idle for longer is not used again: servers close theirs after five seconds and more,
and a request that meets the closing would look like a failure of the server, since nothing is sent twice."""


Opener = Callable[[Callable[[], asyncio.Protocol]], Awaitable[None]]
"""Opens a connection for the protocol that its argument makes. Raises ``OSError``."""


class BodySink(Protocol):
    """Takes one response, piece by piece; ``wants_more`` turns false when the connection may be closed."""

    wants_more: bool

    def begin(self, status: int) -> None: ...

    def take(self, data: bytes, now: float) -> None:
        """``now`` is the clock when the piece was read."""
        ...


class HungUp(Exception):
    """This side has closed the connection since the sink wanted no more."""


class Disconnected(Exception):
    """The connection broke, or never came about; the message says how, for the person who reads the report."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server listens, and the path that its routes are below."""

    host: str
    port: int
    is_tls: bool
    prefix: str

    def __str__(self) -> str:
        scheme = "https" if self.is_tls else "http"
        return f"{scheme}://{self.host_header}{self.prefix}"

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Origin:
    """``http://host:port``, with or without ``/v1``. Raises ``ConfigError``."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise ConfigError(f"--base-url {url!r} is not an address of a server, such as http://127.0.0.1:8000")
    is_tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Origin(parts.hostname, port or (443 if is_tls else 80), is_tls, prefix)


class HttpClient:
    """Connections to one origin; one request at a time on each, kept for the next request afterwards.

    ``opener`` opens them, by default over TCP.
    """

    def __init__(self, origin: Origin, headers: Mapping[str, str], clock: Clock, opener: Opener | None = None) -> None:
        self.origin = origin
        self._clock = clock
        self._open = opener or self._open_tcp
        self._context = ssl.create_default_context() if origin.is_tls else None
        lines = [f"Host: {origin.host_header}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._headers = "\r\n".join(lines).encode("latin-1")
        self._idle: deque[_Connection] = deque()
        self._keeps_alive = True

    async def request(self, method: str, path: str, body: bytes, sink: BodySink) -> int:
        """Send one request and feed the body of its response to ``sink``; the status, once the body has ended.

        Cancelling it closes the connection. Raises ``Disconnected``, or ``HungUp`` when the sink had enough.
        """
        head = b"%s %s HTTP/1.1\r\n%s\r\nContent-Length: %d\r\n\r\n" % (
            method.encode(),
            (self.origin.prefix + path).encode(),
            self._headers,
            len(body),
        )
        kept = self._kept()
        if kept is not None:
            try:
                return await self._exchange(kept, head + body, sink)
            except Disconnected:
                if kept.has_received:
                    raise
                # The server closed what it said it would keep, before it read this request: it is sent on a new
                # connection, and none is kept any more, so that this happens once and not in the middle of a run.
                self._keeps_alive = False
                self.close()
        return await self._exchange(await self._opened(), head + body, sink)

    async def _exchange(self, connection: _Connection, data: bytes, sink: BodySink) -> int:
        try:
            status = await connection.exchange(data, sink)
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable and self._keeps_alive and status == 200:
            connection.idle_since = self._clock.now()
            self._idle.append(connection)
        else:  # some servers close after anything but a 200, without a word
            connection.close()
        return status

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and self._clock.now() - connection.idle_since < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    async def _opened(self) -> _Connection:
        connection = _Connection(asyncio.get_running_loop(), self._clock)
        try:
            await self._open(lambda: connection)
        except OSError as error:
            raise Disconnected(f"cannot connect to {self.origin}: {_reason(error)}") from error
        return connection

    async def _open_tcp(self, factory: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(factory, self.origin.host, self.origin.port, ssl=self._context)


class _Connection(asyncio.Protocol):
    """One connection; httptools parses what it brings and calls the ``on_`` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: BodySink | None = None
        self._done: asyncio.Future[int] | None = None
        self._now = 0.0
        self._has_begun = False
        self._is_close_delimited = False
        self._num_header_bytes = 0
        self.is_reusable = True
        self.idle_since = 0.0
        self.has_received = False

    async def exchange(self, data: bytes, sink: BodySink) -> int:
        if self._transport is None or self._transport.is_closing():
            raise Disconnected("the server closed the connection before the request")
        self._parser = httptools.HttpResponseParser(self)
        self._sink = sink
        self._has_begun = self.has_received = self._is_close_delimited = False
        self._num_header_bytes = 0
        self._done = self._loop.create_future()
        self._transport.write(data)
        return await self._done

    def close(self) -> None:
        self.is_reusable = False
        self._done = None
        if self._transport is not None:
            self._transport.abort()

    # what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._parser is None:
            self.close()  # an answer nobody asked for
            return
        self._now = self._clock.now()
        self.has_received = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, Disconnected) as error:
            self._fail(Disconnected(f"the server's answer is not HTTP/1.1: {error}"))
        if self._sink is not None and not self._sink.wants_more:
            self._fail(HungUp())

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable = False
        if self._done is None or self._done.done():
            return
        if error is None and self._has_begun and self._parser is not None and self._is_close_delimited:
            self._done.set_result(self._parser.get_status_code())
        elif self._has_begun:
            self._fail(Disconnected(f"the connection broke within an answer{': ' + _reason(error) if error else ''}"))
        else:
            self._fail(Disconnected("the server closed the connection without an answer"))

    # what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise Disconnected(f"more than {MAX_HEADER_BYTES} bytes of headers")
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_close_delimited = False

    def on_message_begin(self) -> None:
        self._is_close_delimited = True

    def on_headers_complete(self) -> None:
        self._has_begun = True
        if self._sink is not None and self._parser is not None:
            self._sink.begin(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self._sink is not None and self._sink.wants_more:
            self._sink.take(body, self._now)

    def on_message_complete(self) -> None:
        if self._parser is None or self._done is None or self._parser.get_status_code() < 200:
            return  # 100 Continue and its like come before the answer
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        if not self._done.done():
            self._done.set_result(self._parser.get_status_code())

    def _fail(self, error: Exception) -> None:
        self.is_reusable = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


def _reason(error: BaseException) -> str:
    """The system's own words; asyncio wraps them in the address, which the message has already."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.partition("Connect call failed")[0].strip() or error.strerror
    return str(error) or type(error).__name__
