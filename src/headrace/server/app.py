"""The ASGI application: layers around a router, all made from one context.

Owns the order of the layers. From the outside in: the boundary that names requests and turns every exception
into an error body, the header limits, the key, the host, the body's limits, the router. What a layer refuses
never reaches the next one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.client import ServedClient
from headrace.core.clock import WallClock
from headrace.core.config import ServeConfig
from headrace.core.request_limits import RequestLimits
from headrace.engine.reasoning import reasoning_habit
from headrace.engine.request_builder import RequestBuilder
from headrace.engine.tool_formats import tool_habit
from headrace.program.encoding import DocumentEncoder
from headrace.program.speculation import Speculation
from headrace.server.access_log import App, RequestBoundary
from headrace.server.auth import ApiKeyCheck, KeyRing
from headrace.server.context import DrainSwitch, ServerContext, ServerMetrics, TokenizerFacts
from headrace.server.errors import status_refusal
from headrace.server.event_stream import KEEP_ALIVE_S
from headrace.server.key_file import read_key_file
from headrace.server.limits import BodyLimits, HeaderLimits, HostCheck
from headrace.server.loop_lag import watch_loop_lag
from headrace.server.model_names import model_names
from headrace.server.openapi import openapi_document
from headrace.server.program_places import ProgramPlaces
from headrace.server.prompts import ChatEncoder, PromptReader
from headrace.server.routes import ROUTES, RouteSpec
from headrace.server.service_desk import ServiceDesk
from headrace.server.tokenizer_port import ServedTokenizer
from headrace.server.traffic import Traffic

MAX_WORKERS = 4


def create_app(
    client: ServedClient,
    tokenizer: ServedTokenizer,
    chat: ChatEncoder | None,
    config: ServeConfig,
    metrics: ServerMetrics,
) -> Starlette:
    """The application over a started engine. ``chat`` is ``None`` for a model without a chat template."""
    return app_of(create_context(client, tokenizer, chat, config, metrics))


def create_context(
    client: ServedClient,
    tokenizer: ServedTokenizer,
    chat: ChatEncoder | None,
    config: ServeConfig,
    metrics: ServerMetrics,
) -> ServerContext:
    """What the routes work with."""
    info = client.info
    limits = _request_limits(config)
    reasoning = reasoning_habit(tokenizer.chat_template, tokenizer)
    return ServerContext(
        client=client,
        prompts=PromptReader(tokenizer, chat, info.max_model_len, limits),
        documents=DocumentEncoder(tokenizer, chat),
        builder=RequestBuilder(info.max_model_len, info.vocab_size, tokenizer, config.seed, limits, reasoning),
        tokens=tokenizer,
        tokenizer_facts=TokenizerFacts(
            bos_token=_token_text(tokenizer, tokenizer.bos_token_id),
            eos_token=_token_text(tokenizer, tokenizer.eos_token_id),
            chat_template=tokenizer.chat_template,
        ),
        config=config,
        limits=limits,
        model_names=model_names(config),
        metrics=metrics,
        clock=WallClock(),
        desk=ServiceDesk.of(config),
        programs=ProgramPlaces(),
        speculation=Speculation(config.max_program_guess_tokens),
        operators=KeyRing(config.admin_key),
        keys=KeyRing((*config.all_keys, *read_key_file(config.api_key_file))),
        tool_habit=tool_habit(tokenizer.chat_template),
        reasoning=reasoning,
        drain=DrainSwitch(),
        traffic=Traffic(),
        workers=ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1), thread_name_prefix="prompt"),
        created=int(time.time()),
        keep_alive_comment_s=KEEP_ALIVE_S,
    )


def _request_limits(config: ServeConfig) -> RequestLimits:
    settings = msgspec.structs.asdict(config)
    return RequestLimits(**{name: settings[name] for name in RequestLimits.__struct_fields__})


def app_of(context: ServerContext) -> Starlette:
    """The application over ``context``; it owns the context's worker threads from here on."""
    config = context.config
    app = Starlette(
        routes=[*(_route(spec, context) for spec in ROUTES), _openapi_route()],
        middleware=[
            Middleware(RequestBoundary, context.clock, context.metrics, config.log_requests),
            Middleware(HeaderLimits, config),
            Middleware(ApiKeyCheck, context.keys, context.operators),
            Middleware(HostCheck, config),
            Middleware(BodyLimits, config),
        ],
        exception_handlers={HTTPException: _refuse_status},
        lifespan=partial(_lifespan, context),
    )
    app.router.redirect_slashes = False  # a redirect would be built from the client's own Host header
    return app


@asynccontextmanager
async def _lifespan(context: ServerContext, app: Starlette) -> AsyncIterator[None]:
    lag = asyncio.create_task(watch_loop_lag(context.clock, context.metrics.observe_event_loop_lag))
    try:
        yield
    finally:
        lag.cancel()
        context.workers.shutdown(wait=False, cancel_futures=True)


def _route(spec: RouteSpec, context: ServerContext) -> Route:
    return Route(spec.path, _endpoint(spec, context), methods=list(spec.methods))


def _endpoint(spec: RouteSpec, context: ServerContext) -> Callable[[HttpRequest], Awaitable[App]]:
    async def endpoint(http: HttpRequest) -> App:
        http.scope["headrace.route"] = spec.path
        return await spec.handler(context, http)

    return endpoint


def _openapi_route() -> Route:
    body = msgspec.json.encode(openapi_document(ROUTES))

    async def openapi(http: HttpRequest) -> Response:
        http.scope["headrace.route"] = http.url.path
        return Response(body, media_type="application/json")

    return Route("/openapi.json", openapi, methods=["GET"])


async def _refuse_status(http: HttpRequest, error: Exception) -> Response:
    """The router's own refusals (404, 405) in the words of all others."""
    assert isinstance(error, HTTPException)
    raise status_refusal(error.status_code, error.headers)


def _token_text(tokenizer: ServedTokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.shown_bytes(token_id).decode("utf-8", "replace")
