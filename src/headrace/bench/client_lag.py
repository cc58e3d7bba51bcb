"""How late this client itself is, and whether that spoils what it measures.

A client without enough CPU reads chunks late and calls it latency of the server. Two things show it: requests
that are written later than they should be, and an event loop whose timers fire late. The loop is asked every
few milliseconds, so that its lag is known also while no request is due.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.statistics import Spread, percentile
from headrace.core.clock import Clock

INTERVAL_S = 0.02
MAX_SAMPLES = 1 << 16
TIMER_S = 0.0015
"""What a healthy loop's timer may be late: its clock counts whole milliseconds."""

FLOORS_S = (0.005, 0.010)
"""Lag below this is nobody's concern, at the median and at the 99th percentile."""
SHARE = 0.1


class LagMonitor:
    """Measures the lateness of the running event loop. *Mutable.* Memory stays bounded: old samples are thinned."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lags_s: array[float] = array("d")
        self._every = 1

    async def watch(self) -> None:
        """Until cancelled."""
        number = 0
        while True:
            before = self._clock.now()
            await asyncio.sleep(INTERVAL_S)
            lag = max(0.0, self._clock.now() - before - INTERVAL_S - TIMER_S)
            if number % self._every == 0:
                self.lags_s.append(lag)
            number += 1
            if len(self.lags_s) >= MAX_SAMPLES:
                self.lags_s = self.lags_s[::2]
                self._every *= 2


@dataclass(frozen=True, slots=True)
class LagReport:
    """The client's lateness in seconds at the median and the 99th percentile, and the limits it was held to.

    The worse of two counts: requests written late, and the event loop late to read.
    """

    send_p99_s: float
    loop_p99_s: float
    median_s: float
    p99_s: float
    limits_s: tuple[float, float]

    @property
    def is_distorting(self) -> bool:
        return self.median_s > self.limits_s[0] or self.p99_s > self.limits_s[1]

    def remedy(self) -> str:
        """What to do, in one line; for a report that is distorting."""
        is_median = self.median_s > self.limits_s[0]
        lag_s, limit_s = (self.median_s, self.limits_s[0]) if is_median else (self.p99_s, self.limits_s[1])
        rank = "median" if is_median else "99th percentile"
        return (
            f"this client itself was {lag_s * 1e3:.1f} ms late at its {rank}, more than {limit_s * 1e3:.1f} ms: "
            "the latencies are partly its own; run it on another machine or core, lower the load, "
            "or accept it with --max-client-lag MS"
        )


def judge_lag(
    send_lags_s: Sequence[float], loop_lags_s: Sequence[float], latencies: Sequence[Spread], limit_s: float | None
) -> LagReport:
    """Hold lag to a tenth of each latency at the same percentile, or to ``limit_s`` where it is set.

    Like is compared with like: a lag that one reading in a hundred has moves the 99th percentile, not the median.
    """
    known = [spread for spread in latencies if spread.count]
    limits = [
        max(floor, SHARE * min((spread.percentile(rank) for spread in known), default=0.0))
        for rank, floor in zip((50, 99), FLOORS_S, strict=True)
    ]
    if limit_s is not None:
        limits = [limit_s, limit_s]
    return LagReport(
        send_p99_s=percentile(send_lags_s, 99),
        loop_p99_s=percentile(loop_lags_s, 99),
        median_s=max(percentile(send_lags_s, 50), percentile(loop_lags_s, 50)),
        p99_s=max(percentile(send_lags_s, 99), percentile(loop_lags_s, 99)),
        limits_s=(limits[0], limits[1]),
    )
