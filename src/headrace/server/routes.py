"""The table of all routes: what serves them, what they take and give. Router and OpenAPI are made from it."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.server import root_routes
from headrace.server.access_log import App
from headrace.server.chat import create_chat_completion
from headrace.server.completions import create_completion
from headrace.server.confirming import ConfirmReply, confirm_request
from headrace.server.context import ServerContext
from headrace.server.decisions import create_decision
from headrace.server.native import (
    abort_request,
    create_native,
    flush_cache,
    health_generate,
    show_model_info,
    show_server_info,
)
from headrace.server.programs import create_program_run
from headrace.server.protocol_chat import ChatRequest, ChatResponse
from headrace.server.protocol_completions import CompletionRequest, CompletionResponse
from headrace.server.protocol_decisions import (
    DecisionRequest,
    DecisionResponse,
    SystemOneRequest,
    SystemOneResponse,
)
from headrace.server.protocol_native import AbortRequest, ModelInfo, NativeRequest, NativeResponse, ServerInfo
from headrace.server.protocol_programs import ProgramRequest, ProgramResponse
from headrace.server.protocol_root import (
    DetokenizeRequest,
    DetokenizeResponse,
    Health,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    Version,
)
from headrace.server.scoring import (
    PairScoreResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    create_rerank,
    create_score,
)
from headrace.server.systemone import create_system_one
from headrace.server.timelines import TimelineReply, show_timeline

Handler = Callable[[ServerContext, HttpRequest], Awaitable[App]]


class Untyped(enum.Enum):
    """What a 200 holds where it holds no JSON."""

    TEXT = "text"
    NOTHING = "nothing"


Shape = Any
"""A struct, or a list of them: what msgspec makes a schema of."""


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One route. ``takes`` is its body, ``gives`` what a 200 holds: one of several where the request decides."""

    path: str
    methods: tuple[str, ...]
    handler: Handler
    takes: type[msgspec.Struct] | None = None
    gives: type[msgspec.Struct] | tuple[Shape, ...] | Untyped = Untyped.NOTHING


ROUTES = (
    RouteSpec("/v1/completions", ("POST",), create_completion, CompletionRequest, CompletionResponse),
    RouteSpec("/v1/chat/completions", ("POST",), create_chat_completion, ChatRequest, ChatResponse),
    RouteSpec("/v1/programs", ("POST",), create_program_run, ProgramRequest, ProgramResponse),
    RouteSpec("/v1/decisions", ("POST",), create_decision, DecisionRequest, DecisionResponse),
    RouteSpec("/v1/systemone", ("POST",), create_system_one, SystemOneRequest, SystemOneResponse),
    RouteSpec("/v1/score", ("POST",), create_score, ScoreRequest, (ScoreResponse, PairScoreResponse)),
    RouteSpec("/rerank", ("POST",), create_rerank, RerankRequest, RerankResponse),
    RouteSpec("/v1/rerank", ("POST",), create_rerank, RerankRequest, RerankResponse),
    RouteSpec("/v2/rerank", ("POST",), create_rerank, RerankRequest, RerankResponse),
    RouteSpec("/generate", ("POST", "PUT"), create_native, NativeRequest, (NativeResponse, list[NativeResponse])),
    RouteSpec("/get_model_info", ("GET",), show_model_info, gives=ModelInfo),
    RouteSpec("/model_info", ("GET",), show_model_info, gives=ModelInfo),
    RouteSpec("/server_info", ("GET",), show_server_info, gives=ServerInfo),
    RouteSpec("/get_server_info", ("GET",), show_server_info, gives=ServerInfo),
    RouteSpec("/health_generate", ("GET",), health_generate),
    RouteSpec("/flush_cache", ("GET", "POST"), flush_cache, gives=Untyped.TEXT),
    RouteSpec("/abort_request", ("POST",), abort_request, AbortRequest),
    RouteSpec("/v1/models", ("GET",), root_routes.list_models, gives=ModelList),
    RouteSpec("/v1/models/{model:path}", ("GET",), root_routes.show_model, gives=ModelCard),
    RouteSpec("/v1/requests/{request_id:path}/timeline", ("GET",), show_timeline, gives=TimelineReply),
    RouteSpec("/v1/requests/{request_id:path}/confirm", ("POST",), confirm_request, gives=ConfirmReply),
    RouteSpec("/tokenize", ("POST",), root_routes.tokenize, TokenizeRequest, TokenizeResponse),
    RouteSpec("/detokenize", ("POST",), root_routes.detokenize, DetokenizeRequest, DetokenizeResponse),
    RouteSpec("/tokenizer_info", ("GET",), root_routes.tokenizer_info, gives=TokenizerInfo),
    RouteSpec("/health", ("GET",), root_routes.readyz, gives=Health),
    RouteSpec("/livez", ("GET",), root_routes.livez, gives=Health),
    RouteSpec("/readyz", ("GET",), root_routes.readyz, gives=Health),
    RouteSpec("/ping", ("GET", "POST"), root_routes.readyz, gives=Health),
    RouteSpec("/version", ("GET",), root_routes.server_version, gives=Version),
    RouteSpec("/metrics", ("GET",), root_routes.metrics, gives=Untyped.TEXT),
    RouteSpec("/metrics/", ("GET",), root_routes.metrics, gives=Untyped.TEXT),
)
