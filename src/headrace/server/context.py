"""What every route of one server works with: the engine's client, the prompts' reader, names and limits.

Owns the admission of HTTP requests (is the engine there, is the server going away, is the model ours) and the
worker threads that keep long work off the event loop. It does not know any route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from headrace.core.client import ServedClient
from headrace.core.clock import Clock
from headrace.core.config import ServeConfig
from headrace.core.errors import HeadraceError
from headrace.core.request_limits import RequestLimits
from headrace.core.service_level import ServiceTerms
from headrace.engine.reasoning import ReasoningHabit
from headrace.engine.request_builder import RequestBuilder
from headrace.engine.tool_formats import ToolHabit
from headrace.program.encoding import DocumentEncoder
from headrace.program.speculation import Speculation
from headrace.server.access_log import HttpCounters
from headrace.server.auth import KeyRing
from headrace.server.errors import RESTART_RETRY_S, unavailable, unknown_model
from headrace.server.logprobs import TokenView
from headrace.server.program_places import ProgramPlaces
from headrace.server.prompts import PromptReader
from headrace.server.protocol_common import GenerationFields
from headrace.server.service_desk import Headers, ServiceDesk
from headrace.server.traffic import Traffic

P = ParamSpec("P")
T = TypeVar("T")

DRAIN_RETRY_S = 10.0

SPARE_HEADER = b"x-spare-sequences"


class ServerMetrics(HttpCounters, Protocol):
    """What the routes need of the metrics."""

    def observe_rejected(self, error: HeadraceError) -> None: ...

    def observe_event_loop_lag(self, lag_s: float) -> None: ...

    def render(self, accept: str) -> tuple[bytes, str]: ...


class DrainSwitch:
    """Thrown once, when the server begins to go away; from then on no new work is taken."""

    def __init__(self) -> None:
        self.is_on = False
        self._actions: list[Callable[[], None]] = []

    def when_on(self, action: Callable[[], None]) -> None:
        """Have ``action`` called when the switch is thrown."""
        self._actions.append(action)

    def turn_on(self) -> None:
        if not self.is_on:
            self.is_on = True
            for action in self._actions:
                action()


@dataclass(frozen=True)
class TokenizerFacts:
    """What ``/tokenizer_info`` tells besides sizes."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


@dataclass(frozen=True)
class ServerContext:
    """Everything a route may use; one per server. ``created`` is in Unix seconds."""

    client: ServedClient
    prompts: PromptReader
    documents: DocumentEncoder
    builder: RequestBuilder
    tokens: TokenView
    tokenizer_facts: TokenizerFacts
    config: ServeConfig
    limits: RequestLimits
    model_names: tuple[str, ...]
    metrics: ServerMetrics
    clock: Clock
    desk: ServiceDesk
    programs: ProgramPlaces
    speculation: Speculation
    keys: KeyRing
    operators: KeyRing
    tool_habit: ToolHabit
    reasoning: ReasoningHabit | None
    drain: DrainSwitch
    traffic: Traffic
    workers: ThreadPoolExecutor
    created: int
    keep_alive_comment_s: float

    def check_serving(self) -> None:
        """Raise a 503 with Retry-After unless generation can start now."""
        if self.drain.is_on:
            raise unavailable("the server is shutting down; try another one, or again later", DRAIN_RETRY_S)
        if not self.client.is_ready:
            raise unavailable("the engine is starting; try again in a few seconds", RESTART_RETRY_S)

    def terms(self, fields: GenerationFields, headers: Headers) -> ServiceTerms:
        """On what terms a request is served, and as part of which program. Raises ``InvalidRequest``."""
        headers = list(headers)
        terms = self.desk.terms(fields, headers)
        program = self.programs.of(headers, terms.tenant, self.clock.now())
        return terms if program is None else msgspec.structs.replace(terms, program=program)

    def room_headers(self) -> list[tuple[bytes, bytes]]:
        """How many more sequences could run now and cost the others nothing: clients guess with them."""
        return [(SPARE_HEADER, str(self.client.num_spare_seqs).encode())]

    def served_name(self, asked: str | None) -> str:
        """The model name a reply carries. Raises a 404 for a model that is not served here."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise unknown_model(asked, self.model_names)
        return asked

    async def in_worker(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in a worker thread, so that the event loop goes on meanwhile."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.workers, partial(work, *args, **kwargs))

    @contextmanager
    def counted_rejections(self) -> Iterator[None]:
        """What is refused inside counts as a rejected request."""
        try:
            yield
        except HeadraceError as error:
            self.metrics.observe_rejected(error)
            raise
