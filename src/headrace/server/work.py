"""Work of this server's own behind one HTTP request: done while its client waits, dropped when the client leaves.

Owns the reading of such a request, that race, and the calls' place in the server's counters. It does not know what the
work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.client import EngineInfo, GuessingClient
from headrace.core.errors import InvalidRequest, RequestAborted
from headrace.core.request import Request, RequestOutput
from headrace.core.service_level import ServiceTerms
from headrace.program.engine_backend import EngineBackend, Owner
from headrace.server.access_log import Receive, Scope, Send, record_of
from headrace.server.context import ServerContext
from headrace.server.json_body import BodyType, ignored_fields_headers
from headrace.server.limits import read_body
from headrace.server.protocol_common import GenerationFields, WorkBody
from headrace.server.traffic import Traffic

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, msgspec.Struct]]


class CountedClient:
    """A ``GuessingClient`` whose requests show in the server's counters."""

    def __init__(self, client: GuessingClient, traffic: Traffic) -> None:
        self._client = client
        self._traffic = traffic

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    @property
    def is_ready(self) -> bool:
        return self._client.is_ready

    async def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """See ``EngineClient.generate``."""
        self._traffic.begin(request)
        try:
            async with aclosing(self._client.generate(request)) as outputs:
                async for output in outputs:
                    self._traffic.num_output_tokens += len(output.token_ids)
                    yield output
        finally:
            self._traffic.end(request)

    async def abort(self, request_id: str) -> None:
        await self._client.abort(request_id)

    @property
    def num_spare_seqs(self) -> int:
        return self._client.num_spare_seqs

    async def confirm(self, request_id: str) -> None:
        await self._client.confirm(request_id)


B = TypeVar("B", bound=WorkBody)


@dataclass(frozen=True, slots=True)
class Asked(Generic[B]):
    """The body of one HTTP request, with what its work runs on."""

    context: ServerContext
    http: HttpRequest
    value: B
    model: str
    ignored_fields: tuple[str, ...]

    def backend(self, fields: GenerationFields) -> EngineBackend:
        """Where its calls go; ``fields`` say on whose behalf and how soon."""
        terms = self.context.terms(fields, self.http.scope["headers"])
        if terms.program is not None and terms.program.is_guess:  # its calls have ids that nobody could confirm
            raise InvalidRequest("x-program-guess is for single generations; leave it out here", "x-program-guess")
        return backend_for(self.context, terms, self.value.cache_salt)


@asynccontextmanager
async def asked(context: ServerContext, http: HttpRequest, body_type: BodyType[B]) -> AsyncIterator[Asked[B]]:
    """Read a body. What is refused here and in the block that reads on counts as a rejected request."""
    context.check_serving()
    data = await read_body(http.receive, context.config.max_body_bytes)
    with context.counted_rejections():
        body = body_type.decode(data, context.config.max_json_depth)
        yield Asked(context, http, body.value, context.served_name(body.value.model), body.ignored_fields)


def backend_for(context: ServerContext, terms: ServiceTerms, cache_salt: str | None) -> EngineBackend:
    """What the programs and questions of one HTTP request run on."""
    client = CountedClient(context.client, context.traffic)
    owner = Owner(terms, cache_salt or "")
    return EngineBackend(client, context.documents, context.builder, context.clock, owner)


class WorkResponse:
    """ASGI response: does the work, then answers with what it gave, as JSON."""

    def __init__(self, work: Work, ignored_fields: tuple[str, ...]) -> None:
        self._work = work
        self._ignored_fields = ignored_fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = msgspec.json.encode(await unless_gone(receive, self._work()))
        record_of(scope).mark_first_event()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *ignored_fields_headers(self._ignored_fields),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do the work; if the client leaves first, end it and raise ``RequestAborted``."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestAborted("the client closed the connection")
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
