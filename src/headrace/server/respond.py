"""The two ways an HTTP request for generation is answered: whole, or as a stream.

Owns what both have in common: identities, headers, running the generation against the client's patience. It
does not know dialects; a ``Reply`` does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.request import Request
from headrace.core.request_limits import RequestLimits, check_limit
from headrace.engine.streams import merge_outputs
from headrace.server.access_log import App, Receive, RequestRecord, Scope, Send, record_of, sound_request_id
from headrace.server.context import ServerContext
from headrace.server.event_stream import EventStream
from headrace.server.generation import Delta, Generation
from headrace.server.json_body import Body, ignored_fields_headers
from headrace.server.protocol_common import GenerationFields
from headrace.server.reply import Reply, ReplyHead
from headrace.server.timing_line import NoTiming, Timing, TimingLine

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Identity:
    """The names of one reply: the client's for the reply, and one that no other live request has.

    Two clients may send the same request id; the engine must still tell them apart.
    """

    head: ReplyHead
    engine_id: str


def identify(prefix: str, model: str, body: GenerationFields, record: RequestRecord) -> Identity:
    """Name a reply after the body's ``request_id`` (SGLang's ``rid``), else the request's own id."""
    record.request_id = sound_request_id(body.request_id or body.rid or "") or record.request_id
    reply_id = f"{prefix}-{record.request_id}"
    return Identity(ReplyHead(reply_id, int(time.time()), model), f"{reply_id}-{secrets.token_hex(6)}")


def check_stream_options(body: GenerationFields) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only for streams; set stream to true or leave it out", "stream_options")
    if body.stream_interval is not None and body.stream_interval < 1:
        raise InvalidRequest(f"stream_interval is {body.stream_interval} but must be at least 1", "stream_interval")


def cache_salt(body: GenerationFields, limits: RequestLimits) -> str:
    """vLLM's ``cache_salt`` and SGLang's ``extra_key`` in one: a prefix is shared only where both are equal.

    No field can hold the NUL between them (``json_body.check_json``), so different pairs never coincide.
    """
    salt = body.cache_salt or ""
    if not body.extra_key:
        return salt
    joined = f"{salt}\0{body.extra_key}"
    what = "extra_key and cache_salt together have {} characters"
    check_limit("extra_key", what, len(joined), "max_cache_salt_chars", limits.max_cache_salt_chars)
    return joined


def response(context: ServerContext, requests: Sequence[Request], reply: Reply, body: Body[GenerationFields]) -> App:
    """The ASGI response that generates and answers as the body asked."""
    if not body.value.stream:
        return whole_response(context, requests, reply, body.ignored_fields)
    return stream_response(context, requests, reply, body.ignored_fields, body.value.stream_interval or 1)


def whole_response(
    context: ServerContext, requests: Sequence[Request], reply: Reply, ignored_fields: tuple[str, ...]
) -> App:
    """The ASGI response that generates everything and answers once."""
    return WholeResponse(context, requests, reply, ignored_fields_headers(ignored_fields))


def stream_response(
    context: ServerContext,
    requests: Sequence[Request],
    reply: Reply,
    ignored_fields: tuple[str, ...],
    interval: int = 1,
) -> App:
    """The ASGI response that answers while it generates, ``interval`` tokens or more at a time."""
    headers = [*ignored_fields_headers(ignored_fields), *context.room_headers()]
    events = EventStream(reply, headers, _timing(context), context.keep_alive_comment_s, interval)
    return StreamResponse(context, requests, reply, events)


def _timing(context: ServerContext) -> Timing:
    return TimingLine() if context.config.enable_timelines else NoTiming()


class WholeResponse:
    """ASGI response: generates everything, then answers once."""

    def __init__(self, context: ServerContext, requests: Sequence[Request], reply: Reply, headers: Headers) -> None:
        self._context = context
        self._requests = requests
        self._reply = reply
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.reply = self._reply
        async with Generation(self._context.client, self._requests, receive, self._context.traffic) as generation:
            deltas = await self._collect(generation, record)
        body = msgspec.json.encode(self._reply.whole(deltas))
        timing = _timing(self._context)
        timing.observe(deltas)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._headers,
            *self._context.room_headers(),
            *timing.headers(),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _collect(self, generation: Generation, record: RequestRecord) -> list[Delta]:
        """All outputs, one delta per sequence."""
        parts: dict[tuple[int, int], list[Delta]] = {}
        while (deltas := await generation.next(self._context.keep_alive_comment_s)) is not None:
            for delta in deltas:
                record.mark_first_event()
                parts.setdefault((delta.prompt_index, delta.output.index), []).append(delta)
        return [
            Delta(prompt_index, merge_outputs([delta.output for delta in of_sequence]))
            for (prompt_index, _), of_sequence in parts.items()
        ]


class StreamResponse:
    """ASGI response: answers while it generates."""

    def __init__(self, context: ServerContext, requests: Sequence[Request], reply: Reply, events: EventStream) -> None:
        self._context = context
        self._requests = requests
        self._reply = reply
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.reply = self._reply
        generation = Generation(self._context.client, self._requests, receive, self._context.traffic)
        await self._events.send(generation, send, record)
