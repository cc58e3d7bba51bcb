"""Sends the sessions of a workload to one server, in an open or a closed loop, and hands over their records.

Open loop: each session has a time decided beforehand and is sent then, however the server is doing; a limit on
concurrency only holds it back, and its clock runs from the intended time all the same. Closed loop: so many
clients, each sending its next session when its last is over. Nothing is ever retried. A request that fails ends
its session, since the turns after it have no answer to go on from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.bench.arrivals import Arrivals
from headrace.bench.client_lag import LagMonitor
from headrace.bench.dialect import BodyOptions, Dialect, History
from headrace.bench.http_client import Disconnected, HttpClient, HungUp
from headrace.bench.pacing import Pacer
from headrace.bench.record import Outcome, RequestRecord
from headrace.bench.reply_sink import ReplySink, TokenCounter
from headrace.bench.workload import Session, Turn
from headrace.core.errors import HeadraceError


class Recorder(Protocol):
    """Takes records as requests end."""

    def add(self, record: RequestRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how it is talked to. ``count_tokens`` is for one that gives no usage."""

    client: HttpClient
    dialect: Dialect
    options: BodyOptions
    timeout_s: float
    count_tokens: TokenCounter | None = None


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Sessions at their own times, at most ``max_concurrency`` at once (``None``: any number)."""

    arrivals: Arrivals
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` clients without pause."""

    concurrency: int


Loop = OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What the clock said of a run, in seconds. ``lags_s`` are of the client's own event loop."""

    duration_s: float
    client_cpu_s: float
    loop_lags_s: tuple[float, ...]


class LoadGenerator:
    """Runs sessions against a target. *Mutable*: one run at a time.

    After ``max_duration_s`` no new session is sent; what is on its way is waited for.
    """

    def __init__(self, target: Target, recorder: Recorder, pacer: Pacer, max_duration_s: float | None = None) -> None:
        self._pacer = pacer
        self._target = target
        self._recorder = recorder
        self._max_duration_s = max_duration_s
        self._started = 0.0
        self._num_requests = 0
        self._num_sessions = 0

    async def run(self, sessions: Iterable[Session], loop: Loop) -> RunTimes:
        """Send everything and wait for the last answer. Raises ``ConfigError`` for turns the dialect cannot say."""
        monitor = LagMonitor(self._pacer)
        cpu_s = time.process_time()
        self._started = self._pacer.now()
        self._num_requests = self._num_sessions = 0
        watching = asyncio.create_task(monitor.watch())
        try:
            if isinstance(loop, OpenLoop):
                await self._run_open(sessions, loop)
            else:
                await self._run_closed(iter(sessions), loop.concurrency)
        except* HeadraceError as group:  # one of them says what all would
            raise _first(group) from None
        finally:
            watching.cancel()
        return RunTimes(self._now(), time.process_time() - cpu_s, tuple(monitor.lags_s))

    async def _run_open(self, sessions: Iterable[Session], loop: OpenLoop) -> None:
        slots = asyncio.Semaphore(loop.max_concurrency) if loop.max_concurrency else None
        async with asyncio.TaskGroup() as tasks:
            for at_s, session in loop.arrivals.times(sessions):
                if self._is_over(at_s):
                    break
                await self._sleep_until(at_s)
                tasks.create_task(self._run_session(session, self._next_session(), at_s, slots))

    async def _run_closed(self, sessions: Iterator[Session], concurrency: int) -> None:
        async def client() -> None:
            for session in sessions:
                if self._is_over(self._now()):
                    return
                await self._run_session(session, self._next_session(), self._now(), None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(client())

    async def _run_session(
        self, session: Session, number: int, intended_s: float, slots: asyncio.Semaphore | None
    ) -> None:
        history = History.of(session)
        for index, turn in enumerate(session.turns):
            if turn.think_s:
                intended_s += turn.think_s
                await self._sleep_until(intended_s)
            record = self._new_record(session, number, index, intended_s)
            history.ask(turn)
            if slots is None:
                await self._send(turn, history, record)
            else:
                has_to_wait = slots.locked()
                async with slots:
                    record.slot_s = self._now() if has_to_wait else intended_s
                    await self._send(turn, history, record)
            self._recorder.add(record)
            if not record.is_ok:
                return
            history.answer(record.texts[0] if record.texts else "")
            intended_s = record.end_s

    def _new_record(self, session: Session, number: int, index: int, intended_s: float) -> RequestRecord:
        turn = session.turns[index]
        record = RequestRecord(self._num_requests, number, index, session.group, intended_s, intended_s)
        self._num_requests += 1
        record.num_input_tokens = turn.num_input_tokens or 0
        record.max_tokens = turn.max_tokens
        choices = turn.fields.get("n", 1)
        record.num_choices = choices if isinstance(choices, int) else 1
        return record

    async def _send(self, turn: Turn, history: History, record: RequestRecord) -> None:
        """One request from its slot to its end; what goes wrong is in the record."""
        target = self._target
        body = target.dialect.body(turn, history, target.options)
        sink = ReplySink(record, target.dialect.reader(), self._started, turn.abort_after_chunks)
        record.sent_s = self._now()
        try:
            async with asyncio.timeout(target.timeout_s):
                await target.client.request("POST", target.dialect.path, body, sink)
            sink.finish(target.count_tokens)
        except HungUp:
            sink.finish(target.count_tokens)
        except TimeoutError:
            self._fail(record, Outcome.TIMEOUT, f"no end of the answer within {target.timeout_s:g} s")
        except Disconnected as error:
            outcome = Outcome.INCOMPLETE if record.num_chunks else Outcome.UNREACHABLE
            self._fail(record, outcome, str(error))

    def _fail(self, record: RequestRecord, outcome: Outcome, error: str) -> None:
        record.outcome = outcome
        record.error = error
        record.end_s = self._now()
        record.num_output_tokens = record.num_chunks

    async def _sleep_until(self, at_s: float) -> None:
        await self._pacer.sleep_until(self._started + at_s)

    def _next_session(self) -> int:
        self._num_sessions += 1
        return self._num_sessions - 1

    def _is_over(self, at_s: float) -> bool:
        return self._max_duration_s is not None and at_s >= self._max_duration_s

    def _now(self) -> float:
        """Seconds since the start of the run."""
        return self._pacer.now() - self._started


def _first(group: BaseExceptionGroup[HeadraceError]) -> HeadraceError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, HeadraceError)
    return error
