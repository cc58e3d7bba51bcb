"""Server-sent events of one reply, exactly as OpenAI's clients expect them (WHATWG HTML, 9.2).

Owns the order: nothing is sent before the first output or failure, so that a refusal is still an HTTP status;
then events; then usage if asked for; then a comment with the whole timing line; then ``[DONE]``. A failure after the
first byte is one error event and the end, without ``[DONE]``. While nothing comes, a comment keeps the connection
alive. It does not know what the events mean.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from headrace.core.errors import HeadraceError, RequestAborted
from headrace.server.access_log import RequestRecord, Send
from headrace.server.errors import ErrorResponse, error_reply
from headrace.server.generation import Delta
from headrace.server.reply import Reply
from headrace.server.stream_interval import DeltaSource, SpacedDeltas
from headrace.server.timing_line import Timing

KEEP_ALIVE_S = 15.0

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

logger = logging.getLogger(__name__)


class EventStream:
    """Sends one reply as a stream, with at least ``interval`` tokens of a sequence in an event."""

    def __init__(
        self,
        reply: Reply,
        headers: Sequence[tuple[bytes, bytes]],
        timing: Timing,
        keep_alive_s: float,
        interval: int = 1,
    ) -> None:
        self._reply = reply
        self._headers = [*STREAM_HEADERS, *headers]
        self._timing = timing
        self._keep_alive_s = keep_alive_s
        self._interval = interval

    async def send(self, source: AbstractAsyncContextManager[DeltaSource], send: Send, record: RequestRecord) -> None:
        """Run the generation and send everything. Raises only while nothing has been sent."""
        async with source as opened:
            generation = opened if self._interval == 1 else SpacedDeltas(opened, self._interval)
            deltas = await generation.next(self._keep_alive_s)
            self._timing.observe(deltas or ())
            headers = [*self._headers, *self._timing.headers()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                while deltas is not None:
                    await self._send_events(deltas, send, record)
                    deltas = await generation.next(self._keep_alive_s)
                    self._timing.observe(deltas or ())
                body = encode_events(self._reply.last_events()) + self._timing.comment() + DONE
            except RequestAborted:
                raise
            except Exception as error:
                body = error_event(error, record)
            await send({"type": "http.response.body", "body": body})

    async def _send_events(self, deltas: list[Delta], send: Send, record: RequestRecord) -> None:
        body = encode_events(self._reply.events(deltas)) if deltas else KEEP_ALIVE
        if not body:
            return
        if deltas:
            record.mark_first_event()
        await send({"type": "http.response.body", "body": body, "more_body": True})


def encode_events(events: Sequence[msgspec.Struct]) -> bytes:
    return b"".join([b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events])


def error_event(error: Exception, record: RequestRecord) -> bytes:
    """The last event of a stream that fails."""
    if not isinstance(error, HeadraceError):
        logger.error("stream of request %s failed unexpectedly", record.request_id, exc_info=error)
    reply = error_reply(error)
    record.status = reply.status
    return b"data: " + msgspec.json.encode(ErrorResponse(reply.detail)) + b"\n\n"
