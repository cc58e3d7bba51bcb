"""The engine as a process that may die: started, watched, restarted.

Owns the client side of the engine process: its readiness, its streams and its lives. It does not know HTTP,
what is inside the engine, or how a single life is started (``child.py``). Everything runs on one event loop.

A death is noticed by the end of the socket, at once: ``is_ready`` turns false, the next life begins, and what
was running carries on in it (``reentry.py``). A frozen engine is noticed by its silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from headrace.core.client import EngineInfo, StepStats
from headrace.core.clock import Clock, WallClock
from headrace.core.config import EngineConfig
from headrace.core.errors import EngineDead, Overloaded, ShuttingDown
from headrace.core.progress import NullProgress, Progress
from headrace.core.request import Request, RequestOutput
from headrace.core.timeline import SequenceTimeline
from headrace.engine.child import ENGINE_COMMAND, EngineChild
from headrace.engine.life_signs import LifeSigns
from headrace.engine.loop import DRAIN_RETRY_S
from headrace.engine.messages import (
    Abort,
    AskTimeline,
    ClearCache,
    Confirm,
    Drain,
    Failed,
    FromEngine,
    Outputs,
    Pong,
    ProgressAdvanced,
    ProgressFinished,
    ProgressStarted,
    Ready,
    Refused,
    Submit,
    TimelineAnswer,
)
from headrace.engine.metrics import Metrics
from headrace.engine.reentry import DeathCause, Reentry
from headrace.engine.streams import StreamTable
from headrace.engine.watchdog import Watchdog

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 5.0
_ENDED = "the engine process ended while this request was running; try again"
_NEVER_READY = (
    "the engine process died {} times before it was ready and without saying why; its log (standard error) may tell, "
    "and so may the system's log when memory ran out"
)
_STOPPING = "the server is shutting down"
_LEAVING = "the server is shutting down and takes no more requests"


@dataclass(frozen=True, slots=True)
class SupervisorLimits:
    """Periods and counts of supervision; times in seconds.

    ``silence_limit_s``: no sign of life, or one step, for longer than this makes the engine not ready;
    ``hang_limit_s``: for longer than that, and it is killed (``watchdog.py``). A step foretold to take long may take
    so much longer (``life_signs.py``).
    ``restart_delays_s``: waits before consecutive restarts, the last one repeating; the count starts over
    after a life of ``stable_life_s``. ``start_attempts``: how often a first start may die without a word
    before ``start`` gives up, and a later one before the streams that wait for it do. ``max_resumptions``: how
    many engines a request may outlive. ``stop_grace_s``: how long each of asking and SIGTERM may take.
    """

    ping_interval_s: float = 1.0
    silence_limit_s: float = 10.0
    hang_limit_s: float = 30.0
    restart_delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    stable_life_s: float = 60.0
    start_attempts: int = 3
    max_resumptions: int = 16
    stop_grace_s: float = 1.0

    def restart_delay_s(self, num_short_lives: int) -> float:
        """Wait before the next life, after ``num_short_lives`` in a row that were not stable."""
        last = len(self.restart_delays_s) - 1
        return self.restart_delays_s[min(max(num_short_lives - 1, 0), last)]


class _Lives:
    """The lives so far, and what they say of the next."""

    def __init__(self, limits: SupervisorLimits) -> None:
        self._limits = limits
        self._num_short = 0
        self.num_failed_starts = 0

    def note(self, up_s: float) -> None:
        """A life ended ``up_s`` after it was ready; 0 if it never was."""
        self._num_short = 0 if up_s >= self._limits.stable_life_s else self._num_short + 1
        self.num_failed_starts = 0 if up_s > 0 else self.num_failed_starts + 1

    @property
    def is_start_hopeless(self) -> bool:
        return self.num_failed_starts >= self._limits.start_attempts

    @property
    def next_delay_s(self) -> float:
        return self._limits.restart_delay_s(self._num_short)


class EngineSupervisor:
    """A ``ServedClient`` over an engine process that it keeps alive.

    ``command`` is what to run as the engine process; it must speak as ``process.run_child`` does.
    """

    def __init__(
        self,
        config: EngineConfig,
        metrics: Metrics,
        *,
        command: tuple[str, ...] = ENGINE_COMMAND,
        limits: SupervisorLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._command = command
        self._limits = SupervisorLimits() if limits is None else limits
        self._clock: Clock = WallClock() if clock is None else clock
        self._streams = StreamTable(metrics, self._clock)
        self._reentry = Reentry(self._streams, metrics, self._limits.max_resumptions)
        self._signs = LifeSigns(self._limits.silence_limit_s)
        self._progress: Progress = NullProgress()
        self._supervision: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._first_ready = asyncio.Event()
        self._info: EngineInfo | None = None
        # of the present life
        self._child: EngineChild | None = None
        self._up_since: float | None = None
        self._failure: Failed | None = None
        self._watching: asyncio.Task[None] | None = None
        self.last_stats: StepStats | None = None
        self.num_restarts = 0

    @property
    def info(self) -> EngineInfo:
        """What the latest engine said about itself. Raises ``EngineDead`` before the first was ready."""
        if self._info is None:
            raise EngineDead("the engine has not started yet")
        return self._info

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken in now, by an engine that shows signs of life."""
        return self._up_since is not None and self._closing is None and self._signs.is_alive(self._clock.now())

    @property
    def tick_age_s(self) -> float:
        """How long the engine thread had been at one step when it was last heard of; 0 while idle."""
        return self._signs.tick_age_s()

    @property
    def num_open_streams(self) -> int:
        return len(self._streams)

    @property
    def engine_pid(self) -> int | None:
        """Process id of the present life, ``None`` between lives."""
        return None if self._child is None else self._child.pid

    # the client's side

    def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """See ``EngineClient.generate``; a request whose engine dies carries on in the next one."""
        return self._streams.generate(request, self._send)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets one output with ``FinishReason.ABORT`` per open sequence."""
        self._send(Abort(request_id))

    @property
    def num_spare_seqs(self) -> int:
        """See ``GuessingClient.num_spare_seqs``."""
        return self._streams.num_spare_seqs(self.last_stats)

    async def confirm(self, request_id: str) -> None:
        """See ``GuessingClient.confirm``."""
        self._streams.confirm(request_id, self._send)

    async def clear_prefix_cache(self) -> None:
        """See ``ServedClient.clear_prefix_cache``."""
        self._send(ClearCache())

    async def timeline(self, request_id: str) -> list[SequenceTimeline]:
        """See ``ExplainingClient.timeline``."""
        return await self._streams.questions.ask_timeline(request_id, self._send)

    async def start(self, progress: Progress | None = None) -> None:
        """Start the engine process and wait until it is ready, reporting what it loads to ``progress``.

        Raises ``ConfigError`` or ``EngineDead`` with the child's own words if it cannot start; then, and when
        cancelled, nothing is left behind.
        """
        assert self._supervision is None, "a supervisor is started once"
        self._progress = NullProgress() if progress is None else progress
        self._supervision = asyncio.create_task(self._supervise(), name="engine-supervision")
        ready = asyncio.create_task(self._first_ready.wait())
        try:
            await asyncio.wait({ready, self._supervision}, return_when=asyncio.FIRST_COMPLETED)
            if self._supervision.done():
                self._supervision.result()  # raises: supervision ends by itself only when it gives up starting
        except BaseException:
            await self.close()
            raise
        finally:
            ready.cancel()
            self._progress = NullProgress()

    def begin_drain(self) -> None:
        """Have what is queued refused, so that it can go elsewhere; what runs goes on."""
        self._reentry.refuse_newcomers(ShuttingDown(_LEAVING, DRAIN_RETRY_S))
        if self._child is not None and self._up_since is not None:
            self._child.send(Drain())

    async def close(self, drain_timeout_s: float = 0.0) -> None:
        """Take no more requests, let running ones finish for ``drain_timeout_s``, end the child.

        Streams still open then raise ``EngineDead``. Calling it again cuts the draining short.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(drain_timeout_s), name="engine-closing")
        else:
            self._streams.fail_all(EngineDead(_STOPPING))
        await asyncio.shield(self._closing)

    async def _close(self, drain_timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._streams.wait_empty(), drain_timeout_s)
        self._streams.fail_all(EngineDead(_STOPPING))
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.wait({self._supervision})

    def _send(self, message: Submit | Abort | Confirm | ClearCache | AskTimeline) -> None:
        if not isinstance(message, Abort | Confirm):
            self._check_takes_requests()
        if isinstance(message, Submit):
            self._reentry.submit(message.request)
        elif self._child is not None:
            self._child.send(message)
            self._reentry.advance()

    def _check_takes_requests(self) -> None:
        if self._closing is not None:
            raise ShuttingDown(_LEAVING, DRAIN_RETRY_S)
        if self._child is None or self._up_since is None:
            raise EngineDead("the engine is starting; try again in a few seconds")
        if not self.is_ready:
            raise EngineDead("the engine does not answer; try again in a few seconds")
        if self._child.is_congested:
            raise Overloaded("the engine is not reading requests at the moment; try again", _RETRY_AFTER_S)

    # the lives of the child

    async def _supervise(self) -> None:
        """Live, die, live again. Raises only while the engine has never been ready."""
        lives = _Lives(self._limits)
        while True:
            lives.note(await self._live())
            if self._first_ready.is_set():
                self.num_restarts += 1
                self._metrics.engine_restarted()
                if lives.is_start_hopeless:
                    self._streams.fail_all(EngineDead("the engine process ended and cannot be started again"))
            elif self._failure is not None:
                raise self._failure.error()
            elif lives.is_start_hopeless:
                raise EngineDead(_NEVER_READY.format(lives.num_failed_starts))
            logger.warning("starting the engine process again in %.1f s", lives.next_delay_s)
            await asyncio.sleep(lives.next_delay_s)

    async def _live(self) -> float:
        """Start a child and stay until it is dead and its streams are told; seconds that it was up."""
        self._failure = None
        try:
            child = await EngineChild.spawn(self._command, self._config, self._receive)
        except EngineDead as error:
            logger.error("%s", error.message)
            return 0.0
        except Exception as error:  # a full disk, a missing program: perhaps not for ever
            logger.error("the engine process could not be started: %s", error)
            self._failure = Failed.of(error)
            return 0.0
        self._child = child
        try:
            await child.wait_dead()
        finally:
            up_s = await self._end_life(child)
        return up_s

    async def _end_life(self, child: EngineChild) -> float:
        """Turn unready at once, see the child off, and keep what it was doing for the next."""
        was_up_since, self._up_since, self._child = self._up_since, None, None
        if self._watching is not None:
            self._watching.cancel()
        self._metrics.engine_lost()
        self.last_stats = None
        is_told = self._failure is not None and not self._first_ready.is_set()  # the failure to start tells of it
        level = logging.DEBUG if is_told else _level_of_end(was_up_since, self._closing is not None)
        is_orderly = self._closing is not None and was_up_since is not None
        ending = await (child.stop(self._limits.stop_grace_s) if is_orderly else child.kill())
        logger.log(level, "the engine process (pid %d) %s", child.pid, ending.text)
        cause = DeathCause.OUTSIDE if ending.is_by_others else DeathCause.UNKNOWN
        self._reentry.engine_died(EngineDead(_ENDED), cause)
        return 0.0 if was_up_since is None else self._clock.now() - was_up_since

    def _receive(self, message: FromEngine) -> None:
        now = self._clock.now()
        self._signs.note_message(now)
        match message:
            case Outputs(outputs, stats):
                self._signs.note_tick(0.0, now)
                self.last_stats = stats
                self._metrics.observe_step(stats)
                self._streams.deliver(outputs)
                self._reentry.advance()
            case Pong(tick_age_s, expected_s, memory):
                self._signs.note_tick(tick_age_s, now, expected_s)
                self._metrics.observe_memory(memory)
            case Refused():
                self._streams.refuse(message.request_id, message.error())
                self._reentry.advance()
            case TimelineAnswer(question_id, sequences):
                self._streams.questions.answer(question_id, sequences)
            case Ready(info):
                self._become_ready(info)
            case Failed():
                self._failure = message
                level = logging.ERROR if self._first_ready.is_set() else logging.DEBUG
                logger.log(level, "the engine process failed: %s", message.message)
            case _:
                _show(message, self._progress)

    def _become_ready(self, info: EngineInfo) -> None:
        assert self._child is not None
        self._info = info
        self._up_since = self._clock.now()
        self._signs.note_tick(0.0, self._up_since)
        self._streams.admit_for(info)
        self._metrics.engine_started(info)
        if self._first_ready.is_set():
            logger.info("the engine is ready again (restart %d)", self.num_restarts)
        limits = self._limits
        watchdog = Watchdog(self._child, self._signs, self._clock, limits.ping_interval_s, limits.hang_limit_s)
        self._watching = asyncio.create_task(watchdog.run(), name="engine-watchdog")
        self._reentry.engine_ready(self._child.send)
        self._first_ready.set()


def _level_of_end(up_since: float | None, is_asked_for: bool) -> int:
    """How much an operator should care."""
    if not is_asked_for:
        return logging.ERROR
    return logging.DEBUG if up_since is None else logging.INFO


def _show(message: FromEngine, progress: Progress) -> None:
    match message:
        case ProgressStarted(label, total, unit):
            progress.start(label, total, unit)
        case ProgressAdvanced(amount):
            progress.advance(amount)
        case ProgressFinished():
            progress.finish()
