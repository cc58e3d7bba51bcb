"""The way of requests into an engine, and back into the next one when it dies.

Owns the order in which they enter and the question who is to blame. It does not know processes; it is told when
an engine is ready or dead and how to send to it, and runs on the event loop's thread.

What ends an engine is mostly not a request at all (a signal, memory taken by others), so every request in
flight carries on. But one that does end it would end the next one as well, with the same step, since its tokens
determine that step. Therefore each is tried alone first: it enters, brings a token or ends, and leaves for the next
one; then all enter, and newcomers behind them. An engine that dies of itself during a trial dies of the one request
in it, which is ended, and the others go on. What a trial computed is cached, so entering again costs little. A death
from outside (the operator, the kernel out of memory) proves less: the one on trial is first at the next trial, and is
ended if that engine dies before it has moved, too.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable

from headrace.core.errors import EngineDead, HeadraceError, RequestQuarantined
from headrace.core.request import Request
from headrace.engine.messages import Abort, Resume, Submit
from headrace.engine.metrics import Metrics
from headrace.engine.streams import OutputStream, StreamTable

logger = logging.getLogger(__name__)

SendToEngine = Callable[[Submit | Resume | Abort], None]


class DeathCause(enum.Enum):
    """What is known of an engine's end: nothing, so it may be its own fault; or that it came from outside."""

    UNKNOWN = enum.auto()
    OUTSIDE = enum.auto()


class Reentry:
    """Lets requests into whichever engine is there. ``max_resumptions`` is how often one may outlive its engine."""

    def __init__(self, streams: StreamTable, metrics: Metrics, max_resumptions: int) -> None:
        self._streams = streams
        self._metrics = metrics
        self._max_resumptions = max_resumptions
        self._send: SendToEngine | None = None
        self._suspects: deque[OutputStream] = deque()
        self._passed: list[OutputStream] = []
        self._newcomers: deque[Request] = deque()
        self._on_trial: OutputStream | None = None
        self._suspected: OutputStream | None = None

    @property
    def is_settled(self) -> bool:
        """Whether no request is on its way back into an engine."""
        return self._on_trial is None and not self._suspects

    def submit(self, request: Request) -> None:
        """Send a new request, or hold it back while others re-enter. Raises what sending raises."""
        if self._send is None or not self.is_settled:
            self._newcomers.append(request)
        else:
            self._send(Submit(request))

    def refuse_newcomers(self, error: HeadraceError) -> None:
        """Turn those away that wait behind the returning ones."""
        while self._newcomers:
            self._streams.refuse(self._newcomers.popleft().request_id, error)

    def engine_ready(self, send: SendToEngine) -> None:
        """An engine takes requests through ``send``: let those of the last one in."""
        self._send = send
        if self._suspects:
            logger.info("%d requests carry on where the last engine left them", len(self._suspects))
        self.advance()

    def engine_died(self, error: EngineDead, cause: DeathCause) -> None:
        """Keep what was in flight for the next engine; what may not carry on, and questions, end with ``error``."""
        self._streams.questions.fail_all(error)
        accused, self._on_trial, self._send = self._on_trial, None, None
        self._passed = []
        if accused is not None and accused in self._streams:
            self._judge(accused, cause)
        held = {request.request_id for request in self._newcomers}
        in_flight = [stream for stream in self._streams if stream.request.request_id not in held]
        in_flight.sort(key=lambda stream: stream is not self._suspected)
        self._suspects = deque(stream for stream in in_flight if stream.num_resumptions < self._max_resumptions)
        self._streams.forget_engine()
        for stream in in_flight:
            if stream.num_resumptions >= self._max_resumptions:
                self._streams.fail(stream, error)

    def _judge(self, accused: OutputStream, cause: DeathCause) -> None:
        if cause is DeathCause.UNKNOWN or accused is self._suspected:
            self._quarantine(accused)
        else:
            self._suspected = accused

    def advance(self) -> None:
        """Go on with the trials, if the one on trial has shown to be harmless. To be called after every change."""
        if self._send is None or (self._on_trial is not None and not self._is_decided(self._on_trial)):
            return
        self._on_trial = self._next_suspect()
        if self._on_trial is not None:
            self._on_trial.num_resumptions += 1
            self._resume(self._on_trial)
            return
        for stream in self._passed:
            if stream in self._streams:
                self._resume(stream)
        self._passed = []
        while self._newcomers:
            request = self._newcomers.popleft()
            newcomer = self._streams.find(request.request_id)
            if newcomer is not None:
                self._send_or_refuse(Submit(newcomer.request))

    def _is_decided(self, stream: OutputStream) -> bool:
        """Whether the trial of ``stream`` is over: it ended, or it moved and, before the next one, has left.

        One whose client is gone is on trial until the engine says that it has dropped it: a step of it may be running.
        """
        if stream not in self._streams:
            if stream.is_over or not stream.is_leaving:
                return True
            self._streams.see_off(stream)
            return False
        if not stream.has_moved:
            return False
        if stream is self._suspected:
            self._suspected = None
        if self._suspects and stream not in self._passed:
            stream.pause()
            self._passed.append(stream)
            assert self._send is not None
            self._send(Abort(stream.request.request_id))
        return not stream.is_leaving

    def _resume(self, stream: OutputStream) -> None:
        stream.note_resumption()
        self._metrics.request_resumed()
        self._send_or_refuse(Resume(stream.request, stream.progress()))

    def _next_suspect(self) -> OutputStream | None:
        while self._suspects:
            stream = self._suspects.popleft()
            if stream in self._streams:
                return stream
        return None

    def _send_or_refuse(self, message: Submit | Resume) -> None:
        assert self._send is not None
        try:
            self._send(message)
        except HeadraceError as error:
            self._streams.refuse(message.request.request_id, error)

    def _quarantine(self, stream: OutputStream) -> None:
        logger.error(
            "request %s ended the engine process again and is not tried another time; %d others go on",
            stream.request.request_id,
            len(self._streams) - 1,
        )
        self._metrics.request_quarantined()
        self._streams.fail(
            stream,
            RequestQuarantined(
                "this request ended the engine more than once and is not tried again; tell the operator"
            ),
        )
