"""The outermost layer around every request: its id, its one log line, and the last line of error handling.

Owns the request id (the client's, if it is sound), the ``x-request-id`` header, the record other layers fill
in, the HTTP counters, and the promise that an exception becomes an error body, never a traceback. It does not
know routes or dialects.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, RequestAborted
from headrace.server.errors import CLIENT_CLOSED_REQUEST, ErrorReply, error_reply
from headrace.server.reply import Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_REQUEST_ID_CHARS = 64
_UNSOUND = re.compile(r"[^A-Za-z0-9._-]")
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
_MAX_LOGGED_PATH_CHARS = 200
_RECORD_KEY = "headrace.record"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestRecord:
    """What is known about one HTTP request while it runs; written to by the layers it passes.

    ``status`` is what the log shows: 499 when the client left, whatever was sent before.
    """

    request_id: str
    clock: Clock
    start_time: float
    status: int = 0
    first_event_time: float | None = None
    reply: Reply | None = None

    def mark_first_event(self) -> None:
        """Note the moment of the first thing a client could see of the answer."""
        if self.first_event_time is None:
            self.first_event_time = self.clock.now()


class HttpCounters(Protocol):
    """The part of the metrics that counts HTTP traffic."""

    def observe_http_request(self, endpoint: str, method: str) -> None: ...

    def observe_http_response(self, endpoint: str, status_code: int) -> None: ...


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request that ``scope`` belongs to."""
    record = scope[_RECORD_KEY]
    assert isinstance(record, RequestRecord)
    return record


def sound_request_id(text: str) -> str:
    """``text`` without what has no place in a header or a log line, at most 64 characters; may be empty."""
    return _UNSOUND.sub("", text[: 4 * MAX_REQUEST_ID_CHARS])[:MAX_REQUEST_ID_CHARS]


class RequestBoundary:
    """ASGI middleware; see the module. ``logs_requests`` decides whether the line is written."""

    def __init__(self, app: App, clock: Clock, counters: HttpCounters, logs_requests: bool) -> None:
        self._app = app
        self._clock = clock
        self._counters = counters
        self._logs_requests = logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope), self._clock, self._clock.now())
        scope[_RECORD_KEY] = record
        sender = _RecordingSend(record, send)
        try:
            await self._app(scope, receive, sender)
        except RequestAborted:
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            await _send_failure(error, record, sender)
        finally:
            self._finish(scope, record)

    def _finish(self, scope: Scope, record: RequestRecord) -> None:
        endpoint = scope.get("headrace.route", "unmatched")
        self._counters.observe_http_request(endpoint, scope["method"])
        self._counters.observe_http_response(endpoint, record.status)
        if self._logs_requests:
            logger.info("%s", request_line(scope, record))


class _RecordingSend:
    """``send`` that notes the status and adds the request's id to the response."""

    def __init__(self, record: RequestRecord, send: Send) -> None:
        self._record = record
        self._send = send
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self._record.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._record.request_id.encode())]
        await self._send(message)


async def send_error(reply: ErrorReply, send: Send) -> None:
    """Send a complete error response."""
    body = reply.body()
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.all_headers(len(body))})
    await send({"type": "http.response.body", "body": body})


def request_line(scope: Scope, record: RequestRecord) -> str:
    """One line about one request: what was asked, what came of it, never its text."""
    path = _UNPRINTABLE.sub("?", scope["path"][:_MAX_LOGGED_PATH_CHARS])
    parts = [f"{scope['method']} {path} {record.status} id={record.request_id}"]
    if record.reply is not None:
        usage = record.reply.usage
        parts.append(f"prompt={usage.num_prompt_tokens} cached={usage.num_cached_tokens}")
        parts.append(f"output={usage.num_output_tokens} finish={','.join(record.reply.finish_reasons) or '-'}")
    if record.first_event_time is not None:
        parts.append(f"ttft={record.first_event_time - record.start_time:.3f}s")
    parts.append(f"total={record.clock.now() - record.start_time:.3f}s")
    return " ".join(parts)


async def _send_failure(error: Exception, record: RequestRecord, sender: _RecordingSend) -> None:
    if not isinstance(error, HeadraceError):
        logger.error("request %s failed unexpectedly", record.request_id, exc_info=error)
    if sender.has_started:
        raise error
    await send_error(error_reply(error), sender)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = sound_request_id(value.decode("latin-1"))
            if given:
                return given
    return secrets.token_hex(16)
