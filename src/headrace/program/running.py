"""Plain Python on one side, streams on an event loop on the other: a state's sink while its program runs.

Owns the crossing: what is appended goes over without waiting, in the order it was written; what is read waits for
just that. It does not know the language.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.core.errors import HeadraceError, ProgramError
from headrace.program.captures import Capture
from headrace.program.document import Document
from headrace.program.interpreter import append_node
from headrace.program.ir import JoinMode, Node, Select, Value
from headrace.program.names import Names
from headrace.program.placeholders import Placeholder, split_nodes
from headrace.program.run import Run, RunUsage
from headrace.program.runtime import Runtime
from headrace.program.sinks import AsyncView, Recorder, Sink, View
from headrace.program.stream import Stream
from headrace.program.tracer import TraceSink

T = TypeVar("T")


class RunningSink:
    """Writes to one stream of a run. Its stream exists once the loop has done what was asked before."""

    def __init__(self, runtime: Runtime, run: Run, names: Names, make_stream: Callable[[], Stream]) -> None:
        self._runtime = runtime
        self._run = run
        self._names = names
        self._stream: Stream | None = None
        self._do(lambda: self._take(make_stream()), "")

    @property
    def stream(self) -> Stream:
        """For the loop's thread."""
        assert self._stream is not None
        return self._stream

    @property
    def run_usage(self) -> RunUsage:
        """What the whole run has cost so far."""
        return self._run.usage

    def append(self, nodes: Sequence[Node], where: str) -> None:
        def act() -> None:
            for node in split_nodes(nodes):
                append_node(self.stream, node, where)

        self._do(act, where)
        self._names.learn(nodes)

    def fork(self, number: int, where: str) -> Sequence[Sink]:
        name = self._names.new_fork()

        def branch(index: int) -> RunningSink:
            names = self._names.branch(name, index)
            return RunningSink(self._runtime, self._run, names, lambda: self.stream.fork(f"{name}.{index}"))

        return [branch(index) for index in range(number)]

    def join(self, children: Sequence[Sink], mode: JoinMode, where: str) -> None:
        sinks = [child for child in children if isinstance(child, RunningSink)]
        self._do(lambda: self.stream.join([sink.stream for sink in sinks], mode, where), where)
        if mode is JoinMode.GATHER_VARIABLE:
            self._names.learn_joined(sink._names for sink in sinks)

    def case(self, on: Select | Value) -> Recorder:
        return TraceSink(self._names.case(on))

    def ref(self, name: str, where: str) -> Placeholder:
        return Placeholder(self._names.path_of(name, where))

    def view(self, where: str) -> View:
        return _RunningView(self._runtime, self, where)

    def end(self) -> None:
        """Nothing more is appended: let readers of the text come to an end."""
        self._do(self._end_feed, "")

    def check_name(self, name: str, where: str) -> None:
        """Raise ``ProgramError`` for a name that nothing captures."""
        self._names.path_of(name, where)

    def _end_feed(self) -> None:
        self.stream.end_feed()

    def _take(self, stream: Stream) -> None:
        self._stream = stream

    def _do(self, action: Callable[[], None], where: str) -> None:
        def guarded() -> None:
            try:
                action()
            except HeadraceError as error:
                self._run.fail(ProgramError(error.message, where, self._run.captured))

        self._runtime.call_soon(guarded)


@dataclass(frozen=True, slots=True)
class _RunningView:
    """Reads one stream from a thread without an event loop."""

    runtime: Runtime
    sink: RunningSink
    where: str

    def capture(self, name: str) -> Capture:
        self.sink.check_name(name, self.where)
        return self._wait(_capture(self.sink, name), f"await s.get({name!r})")

    def document(self) -> tuple[Document, str]:
        return self._wait(_document(self.sink), "await s.text_async()")

    def pieces(self, name: str | None) -> Iterator[str]:
        return self.runtime.iterate(_pieces(self.sink, name))

    def usage(self) -> RunUsage:
        return self.sink.run_usage

    def on_loop(self) -> AsyncView:
        return _AsyncRunningView(self.runtime, self.sink, self.where)

    def _wait(self, work: Coroutine[Any, Any, T], remedy: str) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.runtime.wait(work)
        work.close()
        raise ProgramError(f"reading here would stop the event loop this runs on; use {remedy}", self.where)


@dataclass(frozen=True, slots=True)
class _AsyncRunningView:
    """Reads one stream from an event loop that is not the stream's."""

    runtime: Runtime
    sink: RunningSink
    where: str

    async def capture(self, name: str) -> Capture:
        self.sink.check_name(name, self.where)
        return await self.runtime.wait_async(_capture(self.sink, name))

    async def document(self) -> tuple[Document, str]:
        return await self.runtime.wait_async(_document(self.sink))

    async def pieces(self, name: str | None) -> AsyncGenerator[str, None]:
        pieces = _pieces(self.sink, name)
        while (piece := await self.runtime.wait_async(_next(pieces))) is not None:
            yield piece


async def _capture(sink: RunningSink, name: str) -> Capture:
    return await sink.stream.capture(name)


async def _document(sink: RunningSink) -> tuple[Document, str]:
    document = await sink.stream.document()
    return document, sink.stream.run.backend.transcript(document)


async def _pieces(sink: RunningSink, name: str | None) -> AsyncGenerator[str, None]:
    async for piece in sink.stream.feed.read(name):
        yield piece


async def _next(pieces: AsyncGenerator[str, None]) -> str | None:
    return await anext(pieces, None)
