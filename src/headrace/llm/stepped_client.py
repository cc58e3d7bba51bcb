"""An ``EngineClient`` over an engine that stays its owner's: it is stepped in a worker thread while there is work.

Owns the turns between taking requests in and stepping. It does not close the engine, and while nothing is asked of
it, it leaves the engine alone, so that its owner can step it too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from headrace.core.client import EngineInfo, StepStats
from headrace.core.clock import WallClock
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import Request, RequestOutput
from headrace.engine.loop import DrivenEngine
from headrace.engine.messages import Abort, Confirm, Submit
from headrace.engine.metrics import Metrics
from headrace.engine.streams import StreamTable


class SteppedClient:
    """Belongs to the event loop it is made on. The engine must have no work of others while this has some."""

    def __init__(self, engine: DrivenEngine) -> None:
        self._engine = engine
        self._streams = StreamTable(Metrics(engine.info.model), WallClock())
        self._streams.admit_for(engine.info)
        self._inbox: deque[Submit | Abort | Confirm] = deque()
        self._has_mail = asyncio.Event()
        self._failure: EngineDead | None = None
        self._last_stats: StepStats | None = None
        self._stepping = asyncio.get_running_loop().create_task(self._run())

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def is_ready(self) -> bool:
        return self._failure is None

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

    async def close(self) -> None:
        """End what still runs, and let go of the engine."""
        self._fail(EngineDead("the engine's client was closed"))
        self._has_mail.set()
        await self._stepping

    def _send(self, message: Submit | Abort | Confirm) -> None:
        if self._failure is not None and isinstance(message, Submit):
            raise self._failure
        self._inbox.append(message)
        self._has_mail.set()

    async def _run(self) -> None:
        try:
            while self._failure is None or self._inbox or self._engine.has_work:
                self._take_mail()
                if self._engine.has_work:
                    outputs, self._last_stats = await asyncio.to_thread(self._step)
                    self._streams.deliver(outputs)
                elif self._failure is None:
                    self._has_mail.clear()
                    await self._has_mail.wait()
        except Exception as error:
            self._fail(EngineDead(f"the engine failed ({type(error).__name__}: {error}); load the model again"))

    def _step(self) -> tuple[list[RequestOutput], StepStats]:
        return self._engine.step(), self._engine.stats()

    def _take_mail(self) -> None:
        while self._inbox:
            match self._inbox.popleft():
                case Submit(request):
                    try:
                        self._engine.submit(request)
                    except (InvalidRequest, Overloaded) as error:
                        self._streams.refuse(request.request_id, error)
                case Abort(request_id):
                    self._engine.abort(request_id)
                case Confirm(request_id):
                    self._engine.confirm(request_id)

    def _fail(self, error: EngineDead) -> None:
        """Fail what is open; what the engine still has of it is ended."""
        self._failure = error
        for request_id in self._streams.open_ids:
            self._inbox.append(Abort(request_id))
        self._streams.fail_all(error)
