"""Takes records as requests end, writes each to a file if wanted, and keeps what a summary needs.

Memory: under a kilobyte for each request and a bounded amount for all gaps and the timeline, whatever the
run's length. Texts go only to the file, where ``keeps_texts`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from headrace.bench.record import Outcome, RequestRecord
from headrace.bench.slo import Slo, meets_all
from headrace.bench.statistics import ValueStore
from headrace.bench.timeline import Timeline

MAX_SHOWN_ERRORS = 5


class RequestRow(msgspec.Struct, frozen=True):
    """One request without its chunks: moments and latencies in seconds."""

    request_id: int
    session: int
    turn: int
    group: str
    outcome: str
    intended_s: float
    sent_s: float
    end_s: float
    ttft_s: float
    e2e_s: float
    tpot_s: float | None
    worst_gap_s: float | None
    queue_s: float
    lag_s: float
    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_chunks: int
    meets_slos: bool

    @property
    def is_ok(self) -> bool:
        return self.outcome == Outcome.OK.value


class RequestLine(RequestRow, frozen=True, kw_only=True):
    """A line of the file of requests: the row, why it failed, its gaps, and its texts where they were asked for."""

    http_status: int
    finish_reason: str
    max_tokens: int
    num_choices: int
    error: str
    gaps_s: list[float]
    texts: list[str] = []


class RunRecorder:
    """Takes the records of one run. *Mutable.* ``on_record`` hears of each request, for progress and checks."""

    def __init__(
        self,
        slos: Sequence[Slo] = (),
        lines: BinaryIO | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
        keeps_texts: bool = False,
    ) -> None:
        self.rows: list[RequestRow] = []
        self.gaps = ValueStore()
        self.timeline = Timeline()
        self.errors: dict[str, int] = {}
        self.num_met: dict[Slo, int] = dict.fromkeys(slos, 0)
        self._slos = slos
        self._lines = lines
        self._on_record = on_record
        self._keeps_texts = keeps_texts

    def add(self, record: RequestRecord) -> None:
        for slo in self._slos:
            self.num_met[slo] += slo.is_met(record)
        row = _row(record, meets_all(record, self._slos))
        self.rows.append(row)
        self.timeline.add(record)
        if record.is_ok:
            self.gaps.extend(record.gaps_s)
        elif record.error and (record.error in self.errors or len(self.errors) < MAX_SHOWN_ERRORS):
            self.errors[record.error] = self.errors.get(record.error, 0) + 1
        if self._lines is not None:
            self._lines.write(msgspec.json.encode(_line(row, record, self._keeps_texts)) + b"\n")
        if self._on_record is not None:
            self._on_record(record)


def _row(record: RequestRecord, meets_slos: bool) -> RequestRow:
    return RequestRow(
        request_id=record.request_id,
        session=record.session,
        turn=record.turn,
        group=record.group,
        outcome=record.outcome.value,
        intended_s=record.intended_s,
        sent_s=record.sent_s,
        end_s=record.end_s,
        ttft_s=record.ttft_s,
        e2e_s=record.e2e_s,
        tpot_s=record.tpot_s,
        worst_gap_s=record.worst_gap_s,
        queue_s=record.queue_s,
        lag_s=record.lag_s,
        num_input_tokens=record.num_input_tokens,
        num_output_tokens=record.num_output_tokens,
        num_cached_tokens=record.num_cached_tokens,
        num_chunks=record.num_chunks,
        meets_slos=meets_slos,
    )


def _line(row: RequestRow, record: RequestRecord, keeps_texts: bool) -> RequestLine:
    return RequestLine(
        **msgspec.structs.asdict(row),
        http_status=record.http_status,
        finish_reason=record.finish_reason,
        max_tokens=record.max_tokens,
        num_choices=record.num_choices,
        error=record.error,
        gaps_s=[round(gap, 6) for gap in record.gaps_s],
        texts=record.texts if keeps_texts else [],
    )
