"""What went on second by second: requests in flight, tokens that came, requests that were sent and ended.

A bucket is a quarter of a second; a run of more than ``MAX_BUCKETS`` of them is kept in wider ones, so that memory
does not grow with time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np

from headrace.bench.record import RequestRecord

MAX_BUCKETS = 2400
BUCKET_S = 0.25
PEAK_WINDOW_S = 1.0


class TimelineSummary(msgspec.Struct, frozen=True):
    """One entry for each ``bucket_s`` seconds: output tokens a second, and requests in flight at its busiest moment.

    ``peak_tokens_per_s`` is of the best second.
    """

    bucket_s: float = BUCKET_S
    tokens_per_s: list[float] = []
    in_flight: list[int] = []
    peak_in_flight: int = 0
    peak_tokens_per_s: float = 0.0


class Timeline:
    """Gathers chunks, starts and ends. *Mutable.*"""

    def __init__(self) -> None:
        self._bucket_s = BUCKET_S
        self._tokens: list[float] = []
        self._starts_s: array[float] = array("d")
        self._ends_s: array[float] = array("d")

    def add(self, record: RequestRecord) -> None:
        """Spread a request's tokens over its chunks, all choices together."""
        self._starts_s.append(record.sent_s)
        self._ends_s.append(record.end_s)
        if not record.num_chunks:
            return
        per_chunk = record.num_output_tokens / record.num_chunks
        for arrival_s in record.arrivals_s:
            bucket = self._bucket(arrival_s)
            self._tokens[bucket] += per_chunk

    def summary(self) -> TimelineSummary:
        rates = [tokens / self._bucket_s for tokens in self._tokens]
        in_flight, peak = self._in_flight(len(rates))
        return TimelineSummary(
            self._bucket_s, rates, in_flight, peak, _best_mean(rates, round(PEAK_WINDOW_S / self._bucket_s))
        )

    def _bucket(self, at_s: float) -> int:
        bucket = int(max(at_s, 0.0) / self._bucket_s)
        while bucket >= MAX_BUCKETS:
            self._bucket_s *= 2
            pairs = [*self._tokens, 0.0][: len(self._tokens) + len(self._tokens) % 2]
            self._tokens = [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
            bucket = int(at_s / self._bucket_s)
        self._tokens.extend([0.0] * (bucket + 1 - len(self._tokens)))
        return bucket

    def _in_flight(self, num_buckets: int) -> tuple[list[int], int]:
        """The most requests at once within each bucket, and over all. An end counts before a start at one moment."""
        counts = [0] * max(num_buckets, 1)
        current = peak = last = 0
        for at_s, step in self._edges():
            bucket = min(int(at_s / self._bucket_s), len(counts) - 1)
            for between in range(last + 1, bucket + 1):
                counts[between] = current
            last = bucket
            current += step
            counts[bucket] = max(counts[bucket], current)
            peak = max(peak, current)
        return counts, peak

    def _edges(self) -> Iterator[tuple[float, int]]:
        """Moments at which a request begins (1) or ends (-1), in order."""
        count = len(self._starts_s)
        times = np.concatenate([np.frombuffer(self._starts_s), np.frombuffer(self._ends_s)]) if count else np.zeros(0)
        steps = np.repeat([1, -1], count)
        order = np.lexsort((steps, times))
        return zip(times[order].tolist(), steps[order].tolist(), strict=True)


def _best_mean(rates: list[float], window: int) -> float:
    """The highest mean of ``window`` values in a row, or of all where there are fewer."""
    width = min(max(window, 1), len(rates))
    sums = (sum(rates[start : start + width]) for start in range(len(rates) - width + 1))
    return max(sums, default=0.0) / width if width else 0.0
