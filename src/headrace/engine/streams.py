"""Outputs on their way from an engine to asyncio readers: one stream per request, one table per client.

Owns the pairing of outputs with their readers, the memory bound of a slow reader, and the moment a request
ends. It does not know whether the engine is a thread or a process; it is told how to send to it. Everything
here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from itertools import chain

import msgspec

from headrace.core.client import EngineInfo, StepStats
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InvalidRequest, Overloaded
from headrace.core.request import Request, RequestOutput, SequenceProgress
from headrace.engine.messages import Abort, Confirm, Submit
from headrace.engine.metrics import Metrics, RequestMeter
from headrace.engine.questions import Questions

_MERGE_AT = 64
"""Unread outputs of one sequence that are folded into one; bounds objects, not tokens."""

_RETRY_AFTER_S = 1.0

Send = Callable[[Submit | Abort], None]
SendConfirm = Callable[[Confirm], None]


def merge_outputs(outputs: list[RequestOutput]) -> RequestOutput:
    """One output equal to a sequence's consecutive ``outputs``; later state wins, deltas concatenate."""
    if len(outputs) == 1:
        return outputs[0]
    last = outputs[-1]
    return RequestOutput(
        request_id=last.request_id,
        index=last.index,
        text="".join(output.text for output in outputs),
        token_ids=tuple(chain.from_iterable(output.token_ids for output in outputs)),
        logprobs=tuple(chain.from_iterable(output.logprobs for output in outputs)),
        prompt_logprobs=tuple(chain.from_iterable(output.prompt_logprobs for output in outputs)),
        usage=last.usage,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        times=next((output.times for output in reversed(outputs) if output.times is not None), None),
        error=last.error,
        warnings=tuple(chain.from_iterable(output.warnings for output in outputs)),
    )


class _Received:
    """What came of one sequence so far, whoever has read it."""

    __slots__ = ("first_output_time", "num_cached_tokens", "num_prompt_logprobs", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_cached_tokens = 0
        self.num_prompt_logprobs = 0
        self.first_output_time = math.nan

    def add(self, output: RequestOutput, now: float) -> None:
        if math.isnan(self.first_output_time):
            self.first_output_time = now
            self.num_cached_tokens = output.usage.num_cached_tokens
        self.token_ids.extend(output.token_ids)
        self.num_prompt_logprobs += len(output.prompt_logprobs)


class OutputStream:
    """The unread outputs of one request, and how far it has come.

    What a reader leaves unread is merged, never dropped, so a stream holds at most the tokens its request
    can have.
    """

    __slots__ = (
        "_arrival",
        "_error",
        "_num_stale_ends",
        "_received",
        "_unfinished",
        "_unmoved",
        "_unread",
        "meter",
        "num_resumptions",
        "request",
    )

    def __init__(self, request: Request, meter: RequestMeter) -> None:
        self.request = request
        self.meter = meter
        self._received = [_Received() for _ in range(request.sampling.n)]
        self._unread: dict[int, list[RequestOutput]] = {}
        self._unfinished = set(range(request.sampling.n))
        self._unmoved: set[int] = set()
        self._num_stale_ends = 0
        self.num_resumptions = 0
        self._error: HeadraceError | None = None
        self._arrival: asyncio.Future[None] | None = None

    @property
    def num_open(self) -> int:
        """Sequences that have not had their last output."""
        return len(self._unfinished)

    @property
    def is_complete(self) -> bool:
        return not self._unfinished

    @property
    def is_over(self) -> bool:
        """Whether the engine has nothing more to do for the request, as it ended or was refused."""
        return self.is_complete or self._error is not None

    @property
    def has_moved(self) -> bool:
        """Whether every sequence has brought a token, or its end, since the request was last resumed."""
        return not self._unmoved

    def confirm(self) -> None:
        """The request was made on a guess and is wanted."""
        place = self.request.program
        if place is not None:
            confirmed = msgspec.structs.replace(place, is_guess=False)
            self.request = msgspec.structs.replace(self.request, program=confirmed)

    def note_resumption(self) -> None:
        """The engine carries on from ``progress`` now."""
        self._unmoved = set(self._unfinished)

    def pause(self) -> None:
        """The engine is told to drop the request: what it still sends of it is stale. No effect the second time."""
        if not self.is_leaving:
            self._num_stale_ends = len(self._unfinished)

    @property
    def is_leaving(self) -> bool:
        """Whether the engine has not yet said that it dropped the request."""
        return self._num_stale_ends > 0

    def is_stale(self, output: RequestOutput) -> bool:
        """Whether an output is of a run that was paused. To be asked of each in order: ends are counted."""
        if self._num_stale_ends == 0:
            return False
        self._num_stale_ends -= output.finish_reason is not None
        return True

    def forget_engine(self) -> None:
        """Nothing more comes of the engine that had the request."""
        self._num_stale_ends = 0

    def progress(self) -> list[SequenceProgress]:
        """What another engine needs to know, besides the request, to carry on where this one is."""
        return [
            SequenceProgress(
                token_ids=list(received.token_ids),
                is_finished=index not in self._unfinished,
                num_cached_tokens=received.num_cached_tokens,
                num_prompt_logprobs=received.num_prompt_logprobs,
                first_output_time=received.first_output_time,
            )
            for index, received in enumerate(self._received)
        ]

    def put(self, output: RequestOutput, now: float) -> None:
        unread = self._unread.setdefault(output.index, [])
        unread.append(output)
        if len(unread) >= _MERGE_AT:
            self._unread[output.index] = [merge_outputs(unread)]
        self._received[output.index].add(output, now)
        if output.finish_reason is not None:
            self._unfinished.discard(output.index)
        if output.token_ids or output.finish_reason is not None:
            self._unmoved.discard(output.index)
        self._wake()

    def fail(self, error: HeadraceError) -> None:
        """Raise ``error`` to the reader once it has read what came before."""
        self._error = error
        self._wake()

    async def next(self) -> RequestOutput | None:
        """The oldest unread sequence's output, or ``None`` at the end. Raises what ``fail`` was given."""
        while not self._unread:
            if self.is_complete:
                return None
            if self._error is not None:
                raise self._error
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        index = next(iter(self._unread))
        return merge_outputs(self._unread.pop(index))

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class StreamTable:
    """The open streams of one client, by request id, and what they are measured by; and its open questions.

    It is also where too much is refused: here the answer does not wait for the engine's current step.
    """

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._streams: dict[str, OutputStream] = {}
        self._departing: dict[str, OutputStream] = {}
        self._max_open: int | None = None
        self.questions = Questions()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def open_ids(self) -> list[str]:
        """Ids of the requests whose streams are open."""
        return list(self._streams)

    def __iter__(self) -> Iterator[OutputStream]:
        return iter(list(self._streams.values()))

    def __contains__(self, stream: OutputStream) -> bool:
        """Whether ``stream`` is open, and not another one under its id."""
        return self._streams.get(stream.request.request_id) is stream

    def find(self, request_id: str) -> OutputStream | None:
        """The open stream of a request, if there is one."""
        return self._streams.get(request_id)

    @property
    def num_open_seqs(self) -> int:
        """Sequences that run, wait or are on their way to the engine."""
        return sum(stream.num_open for stream in self._streams.values())

    def num_spare_seqs(self, last_stats: StepStats | None) -> int:
        """See ``GuessingClient.num_spare_seqs``; ``last_stats`` are of the engine's latest step."""
        return 0 if last_stats is None else max(last_stats.num_free_seqs - self.num_open_seqs, 0)

    def confirm(self, request_id: str, send: SendConfirm) -> None:
        """Tell the engine that a guess was right; a later engine is told with the request itself."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.confirm()
            send(Confirm(request_id))

    def admit_for(self, info: EngineInfo) -> None:
        """From now on admit as many sequences as that engine may run and let wait."""
        self._max_open = info.max_num_seqs + info.max_num_queued_reqs

    async def generate(self, request: Request, send: Send) -> AsyncGenerator[RequestOutput, None]:
        """Submit a request and yield its outputs; leaving early aborts it.

        ``send`` may raise to refuse a ``Submit`` and must not raise for an ``Abort``.
        """
        self._submit(request, send)
        stream = self._open(request)
        try:
            while (output := await stream.next()) is not None:
                yield output
        finally:
            if stream in self:
                self._close(stream)
                stream.meter.abort()
                stream.pause()
                send(Abort(request.request_id))

    def see_off(self, stream: OutputStream) -> None:
        """Go on counting what the engine sends of a stream whose reader has left, so that its end is noticed."""
        self._departing[stream.request.request_id] = stream

    def forget_engine(self) -> None:
        """The engine is gone: nothing more comes of what it had."""
        for stream in (*self, *self._departing.values()):
            stream.forget_engine()
        self._departing.clear()

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Hand outputs to their streams. Those of requests nobody reads any more are expected and ignored."""
        now = self._clock.now()
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                self._note_departure(output)
                continue
            if stream.is_stale(output):
                continue
            stream.meter.observe(output, now)
            stream.put(output, now)
            if stream.is_complete:
                self._close(stream)

    def refuse(self, request_id: str, error: HeadraceError) -> None:
        """The engine did not take a request: its reader gets ``error``."""
        stream = self._streams.get(request_id)
        if stream is None:
            self._depart(request_id)
        else:
            self._close(stream)
            stream.meter.refuse(error)
            self._metrics.observe_rejected(error)
            stream.fail(error)

    def fail(self, stream: OutputStream, error: HeadraceError) -> None:
        """End an open stream with ``error``."""
        self._close(stream)
        stream.meter.fail()
        stream.fail(error)

    def fail_all(self, error: HeadraceError) -> None:
        """End every open stream, and every question, with ``error``."""
        self.questions.fail_all(error)
        for stream in self:
            self.fail(stream, error)

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _submit(self, request: Request, send: Send) -> None:
        try:
            if request.request_id in self._streams:
                raise InvalidRequest(f"a request with the id {request.request_id!r} is running", "request_id")
            self._check_room(request.sampling.n)
            send(Submit(request))
        except HeadraceError as error:
            self._metrics.observe_refused(request, error)
            raise

    def _check_room(self, num_sequences: int) -> None:
        if self._max_open is None:
            return
        num_open = self.num_open_seqs
        if num_open + num_sequences > self._max_open:
            raise Overloaded(
                f"{num_open} sequences run or wait and at most {self._max_open} may (max_num_seqs and "
                f"max_num_queued_reqs), so {num_sequences} more are not taken; try again",
                _RETRY_AFTER_S,
            )

    def _note_departure(self, output: RequestOutput) -> None:
        stream = self._departing.get(output.request_id)
        if stream is not None and stream.is_stale(output) and not stream.is_leaving:
            self._depart(output.request_id)

    def _depart(self, request_id: str) -> None:
        stream = self._departing.pop(request_id, None)
        if stream is not None:
            stream.forget_engine()

    def _open(self, request: Request) -> OutputStream:
        stream = OutputStream(request, self._metrics.open_meter(request))
        self._streams[request.request_id] = stream
        self._empty.clear()
        return stream

    def _close(self, stream: OutputStream) -> None:
        del self._streams[stream.request.request_id]
        if not self._streams:
            self._empty.set()
