"""The engine requests behind one HTTP request, run together and ended together.

Owns the merging of several requests' outputs into one stream of deltas, and the rule that when the client
goes away, or one sequence fails, everything the HTTP request started is aborted. It does not know dialects or
how replies look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.core.client import EngineClient
from headrace.core.errors import RequestAborted
from headrace.core.request import Request, RequestOutput
from headrace.engine.streams import merge_outputs
from headrace.server.traffic import Traffic

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's receive, after the body has been read: its next message says that the client is gone."""

MAX_UNREAD_DELTAS = 256
"""Deltas a slow reader may leave here; beyond that the engine's client holds them back and merges them."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What happened to one sequence of the ``prompt_index``-th engine request."""

    prompt_index: int
    output: RequestOutput


class Generation:
    """An async context: entering starts the requests, leaving ends whatever still runs."""

    def __init__(self, client: EngineClient, requests: Sequence[Request], receive: Receive, traffic: Traffic) -> None:
        self._client = client
        self._requests = requests
        self._traffic = traffic
        self._receive = receive
        self._unread: dict[tuple[int, int], list[RequestOutput]] = {}
        self._num_unread = 0
        self._num_open = len(requests)
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Generation:
        self._tasks = [asyncio.create_task(self._run(index, request)) for index, request in enumerate(self._requests)]
        self._tasks.append(asyncio.create_task(self._watch_client()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next(self, timeout_s: float) -> list[Delta] | None:
        """What arrived since the last call, one delta per sequence; ``None`` at the end.

        Waits for something to arrive; after ``timeout_s`` seconds the answer is an empty list. Raises what
        the engine raised, or what a sequence failed with, once everything before it has been returned;
        ``RequestAborted`` when the client is gone.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self._has_news():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return []
        if isinstance(self._failure, RequestAborted):
            raise self._failure
        if self._unread:
            return self._take()
        if self._failure is not None:
            raise self._failure
        return None

    def _has_news(self) -> bool:
        return bool(self._unread) or self._failure is not None or self._num_open == 0

    def _take(self) -> list[Delta]:
        unread, self._unread, self._num_unread = self._unread, {}, 0
        self._has_room.set()
        return [Delta(prompt_index, merge_outputs(outputs)) for (prompt_index, _), outputs in unread.items()]

    async def _run(self, prompt_index: int, request: Request) -> None:
        self._traffic.begin(request)
        try:
            async with aclosing(self._client.generate(request)) as outputs:
                async for output in outputs:
                    if output.error is not None:
                        raise output.error.failure()
                    await self._put(prompt_index, output)
        except Exception as error:
            self._fail(error)
        finally:
            self._traffic.end(request)
            self._num_open -= 1
            self._changed.set()

    async def _put(self, prompt_index: int, output: RequestOutput) -> None:
        self._unread.setdefault((prompt_index, output.index), []).append(output)
        self._num_unread += 1
        self._traffic.num_output_tokens += len(output.token_ids)
        self._changed.set()
        while self._num_unread >= MAX_UNREAD_DELTAS:
            self._has_room.clear()
            await self._has_room.wait()

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._fail(RequestAborted("the client closed the connection"))

    def _fail(self, error: Exception) -> None:
        """Keep the first failure, except that the client's leaving outranks all."""
        if self._failure is None or isinstance(error, RequestAborted):
            self._failure = error
        self._changed.set()
