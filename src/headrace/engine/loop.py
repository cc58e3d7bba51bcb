"""The engine thread: the one thread that may touch an engine, and its inbox.

Owns the order of things (drain the inbox, step, report) and what an exception means: one from ``submit`` is
that request's, one from ``step`` is the engine's end. It does not know who listens or where outputs go.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from headrace.core.client import EngineInfo, StepStats
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded, ShuttingDown
from headrace.core.memory_pressure import MemoryState
from headrace.core.request import OutputError, Request, RequestOutput, SequenceProgress, refused_outputs
from headrace.core.timeline import SequenceTimeline
from headrace.engine.idle import IdleWork
from headrace.engine.messages import Abort, AskTimeline, ClearCache, Confirm, Drain, Resume, Shutdown, Submit

logger = logging.getLogger(__name__)

DRAIN_RETRY_S = 10.0
"""When a request that a leaving server did not begin should be tried again."""

_Message = Submit | Resume | Abort | Confirm | ClearCache | AskTimeline | Drain | Shutdown


class Tick(NamedTuple):
    """How long the engine thread has been at one tick, and how long the step in it is foretold to take."""

    age_s: float
    expected_s: float


NO_TICK: Final = Tick(0.0, 0.0)


class SteppedEngine(Protocol):
    """What the loop needs of an engine. Every submitted sequence gets exactly one last output."""

    @property
    def has_work(self) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def resume(self, request: Request, progress: Sequence[SequenceProgress]) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def confirm(self, request_id: str) -> None: ...

    def withdraw_queued(self) -> list[str]: ...

    def clear_prefix_cache(self) -> None: ...

    def step(self) -> list[RequestOutput]: ...

    def stats(self) -> StepStats: ...


class DrivenEngine(SteppedEngine, Protocol):
    """An engine as its owner sees it: one that also says what it is and can be closed."""

    @property
    def info(self) -> EngineInfo: ...

    def timeline(self, request_id: str) -> list[SequenceTimeline]: ...

    @property
    def expected_step_s(self) -> float:
        """How long the step that is being computed is foretold to take; 0 between steps. For any thread to ask."""
        ...

    @property
    def memory(self) -> MemoryState:
        """How short memory is. For any thread to ask."""
        ...

    @property
    def idle(self) -> IdleWork:
        """What to do while there is no work."""
        ...

    def close(self) -> None: ...


class LoopListener(Protocol):
    """Hears of everything on the engine thread; must be quick, since the next step waits for it."""

    def on_outputs(self, outputs: list[RequestOutput], stats: StepStats) -> None: ...

    def on_refused(self, request_id: str, error: InvalidRequest | Overloaded) -> None:
        """The engine did not take the request; no output of it will come."""
        ...

    def on_timeline(self, question_id: int, sequences: list[SequenceTimeline]) -> None:
        """The answer to a question."""
        ...

    def on_death(self, error: EngineDead) -> None:
        """The loop is over and everything in flight is lost; called at most once, never after ``close``."""
        ...


class EngineLoop:
    """Drives an engine on a thread of its own, which sleeps in its inbox while there is nothing to do.

    ``submit``, ``resume``, ``abort``, ``confirm``, ``clear_prefix_cache``, ``ask_timeline``, ``stop``, ``tick`` and
    ``memory`` may be called from any thread; what is submitted after the loop has ended is never looked at. The engine
    is closed by the thread that drove it.
    """

    def __init__(self, engine: DrivenEngine, listener: LoopListener, clock: Clock | None = None) -> None:
        self._engine = engine
        self._listener = listener
        self._clock: Clock = WallClock() if clock is None else clock
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._tick_start: float | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=False)
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        self._inbox.put(Submit(request))

    def resume(self, request: Request, progress: list[SequenceProgress]) -> None:
        """Carry on what an earlier engine began."""
        self._inbox.put(Resume(request, progress))

    def abort(self, request_id: str) -> None:
        """End a request; its sequences report ``FinishReason.ABORT``. Unknown ids are ignored."""
        self._inbox.put(Abort(request_id))

    def confirm(self, request_id: str) -> None:
        """A request that was made on a guess is wanted. Unknown ids are ignored."""
        self._inbox.put(Confirm(request_id))

    def clear_prefix_cache(self) -> None:
        """Forget cached prefixes before anything submitted from here on is looked at."""
        self._inbox.put(ClearCache())

    def ask_timeline(self, question_id: int, request_id: str) -> None:
        """Ask where the time of a request went; the listener is told."""
        self._inbox.put(AskTimeline(question_id, request_id))

    def drain(self) -> None:
        """Refuse what is queued and has not begun; what runs goes on."""
        self._inbox.put(Drain())

    def stop(self) -> None:
        """Ask the loop to end after the current step, without waiting."""
        self._inbox.put(Shutdown())

    def join(self) -> None:
        """Wait until the loop has ended and the engine is closed."""
        self._thread.join()

    def close(self) -> None:
        """End after the current step; what was in flight gets no further output."""
        self.stop()
        if self._thread.ident is None:
            self.start()
        self.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def tick(self) -> Tick:
        """The tick that is going on; none, of no age, while the loop waits for work."""
        start = self._tick_start
        return NO_TICK if start is None else Tick(self._clock.now() - start, self._engine.expected_step_s)

    @property
    def memory(self) -> MemoryState:
        """How short memory is, as the engine last measured it or measures it now."""
        return self._engine.memory

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._tick()
        except BaseException as error:
            self._die(error)
        finally:
            self._tick_start = None
            self._close_engine()

    def _tick(self) -> None:
        """Take in what arrived, run one step, report. Waits first if there is nothing to do."""
        message = self._next_message() if self._engine.has_work else self._wait_for_message()
        self._tick_start = self._clock.now()
        while message is not None:
            self._handle(message)
            message = self._next_message()
        if self._is_stopping or not self._engine.has_work:
            return
        outputs = self._engine.step()
        self._listener.on_outputs(outputs, self._engine.stats())

    def _wait_for_message(self) -> _Message:
        """The next message; until one comes, what the engine does when it is idle."""
        self._tick_start = None
        message = self._next_message()
        while message is None and self._engine.idle.advance():
            message = self._next_message()
        return self._inbox.get() if message is None else message

    def _next_message(self) -> _Message | None:
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _handle(self, message: _Message) -> None:
        match message:
            case Submit(request):
                self._take_in(request, range(request.sampling.n), self._engine.submit)
            case Resume(request, progress):
                unfinished = [index for index, done in enumerate(progress) if not done.is_finished]
                self._take_in(request, unfinished, lambda taken: self._engine.resume(taken, progress))
            case Abort(request_id):
                self._engine.abort(request_id)
            case Confirm(request_id):
                self._engine.confirm(request_id)
            case ClearCache():
                self._engine.clear_prefix_cache()
            case AskTimeline(question_id, request_id):
                self._listener.on_timeline(question_id, self._engine.timeline(request_id))
            case Drain():
                error = ShuttingDown("the server is shutting down; try another one, or again later", DRAIN_RETRY_S)
                for request_id in self._engine.withdraw_queued():
                    self._listener.on_refused(request_id, error)
            case Shutdown():
                self._is_stopping = True

    def _take_in(self, request: Request, indices: Collection[int], enter: Callable[[Request], None]) -> None:
        """Let a request enter; if the engine cannot take it in, its sequences ``indices`` fail and nothing else."""
        try:
            enter(request)
        except (InvalidRequest, Overloaded) as error:
            self._listener.on_refused(request.request_id, error)
        except Exception as error:
            logger.exception("request %s could not be taken in; only this request fails", request.request_id)
            message = f"the engine could not take in this request ({type(error).__name__})"
            refused = refused_outputs(request, OutputError("RequestFailed", message))
            outputs = [output for output in refused if output.index in indices]
            # no step ran: its figures must not be counted a second time
            idle = msgspec.structs.replace(self._engine.stats(), num_step_tokens=0, num_step_samples=0, step_s=0.0)
            self._listener.on_outputs(outputs, idle)

    def _die(self, error: BaseException) -> None:
        self.failure = error
        logger.critical("the engine failed and cannot go on; every request in flight is lost", exc_info=error)
        message = f"the engine failed while this request was running ({type(error).__name__}); try again"
        _run_guarded("telling of the engine's end", lambda: self._listener.on_death(EngineDead(message)))

    def _close_engine(self) -> None:
        _run_guarded("closing the engine", self._engine.close)


def _run_guarded(what: str, action: Callable[[], None]) -> None:
    """On the way out, one failure must not hide another: log and go on."""
    try:
        action()
    except Exception:
        logger.exception("%s failed", what)
