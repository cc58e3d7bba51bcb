"""Fills one request's record from its response: which chunk brought output, when, and how it all ended."""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace.bench.dialect import Chunk, ChunkReader, Piece, Usage, error_text
from headrace.bench.event_stream import EventSplitter
from headrace.bench.record import Outcome, RequestRecord

MAX_WHOLE_BODY_BYTES = 64 << 20
_MAX_SHOWN_CHARS = 300


class TokenCounter(Protocol):
    """Counts tokens of a text, for servers that do not say."""

    def __call__(self, text: str) -> int: ...


class ReplySink:
    """Takes one response. *Mutable.* ``started`` is the clock at the start of the run.

    A body is a stream of events, or JSON: an error, a reply that was not asked to stream, or one of a server that
    does not stream. ``abort_after_chunks`` makes it want no more after so many chunks of output.
    """

    def __init__(
        self, record: RequestRecord, reader: ChunkReader, started: float, abort_after_chunks: int | None = None
    ) -> None:
        self.wants_more = True
        self._record = record
        self._reader = reader
        self._started = started
        self._abort_after = abort_after_chunks
        self._splitter = EventSplitter()
        self._whole: list[bytes] = []
        self._num_whole_bytes = 0
        self._last_of_choice: dict[int, float] = {}
        self._finished_choices: set[int] = set()
        self._texts: dict[int, list[str]] = {}
        self._is_done = False
        self._is_aborted = False
        self._usage = Usage()
        self._problem = ""

    def begin(self, status: int) -> None:
        self._record.http_status = status

    def take(self, data: bytes, now: float) -> None:
        now -= self._started
        is_first = not self._record.end_s
        self._record.end_s = now if not self._is_done else self._record.end_s
        if self._whole or self._record.http_status != 200 or (is_first and data[:1] in b"{["):
            self._take_whole(data)
            return
        try:
            for event in self._splitter.feed(data):
                self._take_event(event, now)
        except (ValueError, msgspec.DecodeError) as error:
            self._give_up(f"the server sent a chunk that cannot be read: {error}")

    def finish(self, count_tokens: TokenCounter | None) -> None:
        """Settle the record once the body has ended by itself."""
        record = self._record
        if self._whole:
            self._read_whole()
        record.texts = ["".join(self._texts[choice]) for choice in sorted(self._texts)]
        self._count(count_tokens)
        if self._problem:
            record.outcome, record.error = Outcome.ERROR, self._problem
        elif record.http_status != 200:
            record.outcome, record.error = Outcome.ERROR, f"HTTP {record.http_status}"
        elif self._is_aborted:
            record.outcome = Outcome.ABORTED
        elif len(self._finished_choices) >= record.num_choices or (self._is_done and record.num_chunks):
            record.outcome = Outcome.OK
        else:
            record.outcome = Outcome.INCOMPLETE
            record.error = f"the stream ended after {record.num_chunks} chunks without a finish reason"

    def _take_event(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self._is_done = True
            return
        if self.wants_more:
            self._take_chunk(self._reader.read(event), now)

    def _take_chunk(self, chunk: Chunk, now: float) -> None:
        if chunk.error:
            self._problem = _shortened(chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage
        has_output = False
        for piece in chunk.pieces:
            has_output = self._take_piece(piece, now) or has_output
        if has_output:
            self._record.arrivals_s.append(now)
            if self._abort_after is not None and self._record.num_chunks >= self._abort_after:
                self._is_aborted = True
                self.wants_more = False

    def _take_piece(self, piece: Piece, now: float) -> bool:
        """Note what a choice got; whether that is output."""
        if piece.finish_reason:
            self._finished_choices.add(piece.choice)
            self._record.finish_reason = piece.finish_reason
        if not piece.text:
            return False
        last = self._last_of_choice.get(piece.choice)
        if last is not None:
            self._record.gaps_s.append(now - last)
        self._last_of_choice[piece.choice] = now
        self._texts.setdefault(piece.choice, []).append(piece.text)
        return True

    def _take_whole(self, data: bytes) -> None:
        self._num_whole_bytes += len(data)
        if self._num_whole_bytes > MAX_WHOLE_BODY_BYTES:
            self._give_up(f"the server sent more than {MAX_WHOLE_BODY_BYTES >> 20} MiB in one reply")
        else:
            self._whole.append(data)

    def _read_whole(self) -> None:
        body = b"".join(self._whole)
        if self._record.http_status != 200:
            self._problem = f"HTTP {self._record.http_status}: {_shortened(_error_of(body))}"
            return
        try:
            self._take_chunk(self._reader.read(body), self._record.end_s)
        except msgspec.DecodeError as error:
            self._problem = f"the server sent a reply that cannot be read: {error}"

    def _count(self, count_tokens: TokenCounter | None) -> None:
        record, usage = self._record, self._usage
        record.num_input_tokens = usage.num_input_tokens or record.num_input_tokens
        record.num_cached_tokens = usage.num_cached_tokens
        if usage.num_output_tokens:
            record.num_output_tokens = usage.num_output_tokens
        elif count_tokens is not None:
            record.num_output_tokens = sum(count_tokens(text) for text in record.texts)
        else:  # an aborted stream brings no usage; elsewhere the probe has made sure that there is one
            record.num_output_tokens = record.num_chunks

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        self.wants_more = False


def _error_of(body: bytes) -> str:
    try:
        return error_text(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN_CHARS else line[:_MAX_SHOWN_CHARS] + "..."
