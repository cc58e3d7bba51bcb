"""``POST /v1/programs``: runs a program beside the engine, so that its calls never wait for a network.

Owns the run's place in one HTTP request: its bounds, its answer whole or as it comes, its end when the client leaves.
A program is data (``program/ir.py``); no code is ever taken.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from headrace.core.config import ServeConfig
from headrace.core.errors import HeadraceError
from headrace.program.captures import Capture
from headrace.program.engine_backend import EngineBackend
from headrace.program.interpreter import start
from headrace.program.ir import Limits, SamplingChoice, check_program
from headrace.program.run import Listeners, OnCapture, OnText, Run
from headrace.program.speculation import Speculation
from headrace.server.access_log import App, Receive, Scope, Send, record_of
from headrace.server.context import ServerContext
from headrace.server.event_stream import DONE, KEEP_ALIVE, STREAM_HEADERS, encode_events, error_event
from headrace.server.json_body import ignored_fields_headers
from headrace.server.protocol_common import GenerationFields, PromptTokensDetails
from headrace.server.protocol_programs import (
    PROGRAM_BODY,
    CaptureBody,
    CaptureEvent,
    DoneEvent,
    ProgramRequest,
    ProgramResponse,
    ProgramUsage,
    TextEvent,
)
from headrace.server.work import WorkResponse, asked, unless_gone

Event = TextEvent | CaptureEvent | DoneEvent


async def create_program_run(context: ServerContext, http: HttpRequest) -> App:
    """Run a program of many calls that is given as data."""
    async with asked(context, http, PROGRAM_BODY) as body:
        value = body.value
        fields = GenerationFields(user=value.user, service_tier=value.service_tier, priority=value.priority)
        backend = body.backend(fields)
        await context.in_worker(check_program, value.program, _limits(context.config))
    speculation = context.speculation.of(backend.owner.terms.tenant, backend.owner.cache_salt)
    job = _Job(backend, value, body.model, f"program-{record_of(http.scope).request_id}", speculation)
    if value.stream:
        return _StreamedRun(job, context.keep_alive_comment_s, body.ignored_fields)
    return WorkResponse(lambda: job.run(None, None), body.ignored_fields)


@dataclass(frozen=True, slots=True)
class _Job:
    """A program with all it takes to run it."""

    backend: EngineBackend
    body: ProgramRequest
    model: str
    reply_id: str
    speculation: Speculation

    async def run(self, on_text: OnText | None, on_capture: OnCapture | None) -> ProgramResponse:
        """Run to the end. Whatever happens, nothing of it is left running."""
        captures: dict[str, CaptureBody] = {}

        def keep(name: str, capture: Capture) -> None:
            captures[name] = CaptureBody(value=capture.value, meta=capture.meta)
            if on_capture is not None:
                on_capture(name, capture)

        program_id = f"{self.reply_id}-{secrets.token_hex(6)}"
        run = Run(self.backend, _defaults(self.body), program_id, Listeners(on_text, keep), self.speculation)
        try:
            stream = start(self.body.program, run, self.body.arguments)
            await run.wait()
            document = await stream.document()
        finally:
            await run.cancel()
        return ProgramResponse(
            id=self.reply_id,
            model=self.model,
            captures=captures,
            text=await asyncio.to_thread(self.backend.transcript, document),
            messages=document.messages(),
            usage=_usage(run),
        )


class _StreamedRun:
    """ASGI response: sends captures as server-sent events while the program runs."""

    def __init__(self, job: _Job, keep_alive_s: float, ignored_fields: tuple[str, ...]) -> None:
        self._job = job
        self._keep_alive_s = keep_alive_s
        self._headers = [*STREAM_HEADERS, *ignored_fields_headers(ignored_fields)]
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._send_all(scope, send))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        """Nothing is sent before the first event, so that a program that cannot start is refused by its status."""
        record = record_of(scope)
        running = asyncio.ensure_future(self._run())
        try:
            body = await self._next_bytes()
            if body is None:
                await running  # raises why there is no event at all
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            record.mark_first_event()
            while body is not None:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = await self._next_bytes()
            try:
                await running
                last = DONE
            except HeadraceError as error:
                last = error_event(error, record)
            await send({"type": "http.response.body", "body": last})
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self) -> None:
        try:
            response = await self._job.run(
                lambda name, delta: self._events.put_nowait(TextEvent(name=name, delta=delta)),
                lambda name, capture: self._events.put_nowait(
                    CaptureEvent(name=name, value=capture.value, meta=capture.meta)
                ),
            )
            self._events.put_nowait(DoneEvent(response=response))
        finally:
            self._events.put_nowait(None)

    async def _next_bytes(self) -> bytes | None:
        """The events since the last call, a comment if there are none for a while, ``None`` at the end."""
        try:
            async with asyncio.timeout(self._keep_alive_s):
                event = await self._events.get()
        except TimeoutError:
            return KEEP_ALIVE
        return None if event is None else encode_events([event])


def _limits(config: ServeConfig) -> Limits:
    return Limits(
        num_nodes=config.max_program_nodes,
        depth=config.max_program_depth,
        num_branches=config.max_program_forks,
        num_tokens=config.max_program_tokens,
    )


def _defaults(body: ProgramRequest) -> SamplingChoice:
    stop = (body.stop,) if isinstance(body.stop, str) else None if body.stop is None else tuple(body.stop)
    return SamplingChoice(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        stop=stop,
        seed=body.seed,
    )


def _usage(run: Run) -> ProgramUsage:
    usage = run.usage
    return ProgramUsage(
        calls=usage.num_calls,
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_output_tokens,
        total_tokens=usage.num_prompt_tokens + usage.num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.num_cached_tokens),
        guesses=usage.num_guesses,
        right_guesses=usage.num_right_guesses,
    )
