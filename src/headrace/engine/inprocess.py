"""The engine as a thread of this process, for asyncio callers.

Owns the bridge between the engine thread and the event loop: one wake-up per step, however many tokens it
brought. It does not know how engines are built or restarted; when this one dies, it stays dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from headrace.core.client import EngineInfo, StepStats
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import Request, RequestOutput
from headrace.core.timeline import SequenceTimeline
from headrace.engine.loop import DrivenEngine, EngineLoop
from headrace.engine.messages import Abort, AskTimeline, Confirm, Submit
from headrace.engine.metrics import Metrics
from headrace.engine.streams import StreamTable


class InProcessClient:
    """A ``ServedClient`` over an engine driven by its own thread. Takes over the engine and closes it.

    ``start`` binds it to the running event loop; everything but ``info`` and ``is_ready`` belongs there.
    """

    def __init__(self, engine: DrivenEngine, metrics: Metrics, clock: Clock | None = None) -> None:
        self._info = engine.info
        self._metrics = metrics
        self._streams = StreamTable(metrics, WallClock() if clock is None else clock)
        self._loop = EngineLoop(engine, self, clock)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = False
        self._last_stats: StepStats | None = None

    async def start(self) -> None:
        """Start the engine thread. May be called once."""
        self._event_loop = asyncio.get_running_loop()
        self._loop.start()
        self._is_ready = True
        self._streams.admit_for(self._info)
        self._metrics.engine_started(self._info)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """See ``EngineClient.generate``."""
        return self._streams.generate(request, self._send)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets one output with ``FinishReason.ABORT`` per open sequence."""
        self._send(Abort(request_id))

    @property
    def num_spare_seqs(self) -> int:
        """See ``GuessingClient.num_spare_seqs``."""
        return self._streams.num_spare_seqs(self._last_stats)

    async def confirm(self, request_id: str) -> None:
        """See ``GuessingClient.confirm``."""
        self._streams.confirm(request_id, self._send)

    async def clear_prefix_cache(self) -> None:
        """See ``ServedClient.clear_prefix_cache``."""
        if not self._is_ready:
            raise EngineDead("the engine is not running")
        self._loop.clear_prefix_cache()

    async def timeline(self, request_id: str) -> list[SequenceTimeline]:
        """See ``ExplainingClient.timeline``."""
        return await self._streams.questions.ask_timeline(request_id, self._send)

    async def close(self) -> None:
        """End the engine after its current step; open streams raise ``EngineDead``."""
        self._is_ready = False
        self._streams.fail_all(EngineDead("the engine was closed"))
        await asyncio.to_thread(self._loop.close)
        self._metrics.engine_lost()

    def _send(self, message: Submit | Abort | Confirm | AskTimeline) -> None:
        match message:
            case Submit(request):
                if not self._is_ready:
                    raise EngineDead("the engine is not running")
                self._loop.submit(request)
            case Abort(request_id):
                self._loop.abort(request_id)
            case Confirm(request_id):
                self._loop.confirm(request_id)
            case AskTimeline(question_id, request_id):
                if not self._is_ready:
                    raise EngineDead("the engine is not running")
                self._loop.ask_timeline(question_id, request_id)

    # LoopListener, on the engine thread

    def on_outputs(self, outputs: list[RequestOutput], stats: StepStats) -> None:
        self._call_soon(lambda: self._take_step(outputs, stats))

    def on_refused(self, request_id: str, error: InvalidRequest | Overloaded) -> None:
        self._call_soon(lambda: self._streams.refuse(request_id, error))

    def on_timeline(self, question_id: int, sequences: list[SequenceTimeline]) -> None:
        self._call_soon(lambda: self._streams.questions.answer(question_id, sequences))

    def on_death(self, error: EngineDead) -> None:
        self._call_soon(lambda: self._take_death(error))

    def _call_soon(self, action: Callable[[], None]) -> None:
        assert self._event_loop is not None
        self._event_loop.call_soon_threadsafe(action)

    def _take_step(self, outputs: list[RequestOutput], stats: StepStats) -> None:
        self._last_stats = stats
        self._metrics.observe_step(stats)
        self._streams.deliver(outputs)

    def _take_death(self, error: EngineDead) -> None:
        self._is_ready = False
        self._metrics.engine_lost()
        self._streams.fail_all(error)
