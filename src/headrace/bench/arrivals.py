"""When requests arrive in an open loop: times decided beforehand, whatever the server does.

Times are seconds from the start of the run. Gaps are gamma distributed as in vLLM's benchmark: a shape
(``burstiness``) of 1 is a Poisson process, below 1 comes in bursts, above 1 is more even. A ramp changes the rate
with the number of requests sent so far.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.bench.workload import Session
from headrace.core.errors import ConfigError


class RampStrategy(enum.Enum):
    """How a rate goes from its start to its end."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """``rate`` requests a second throughout; infinite means all at once."""

    rate: float

    def at(self, progress: float) -> float:
        return self.rate


@dataclass(frozen=True, slots=True)
class RampedRate:
    """From ``start`` to ``end`` requests a second; ``progress`` is the share of the requests sent."""

    start: float
    end: float
    strategy: RampStrategy

    def at(self, progress: float) -> float:
        if self.strategy is RampStrategy.LINEAR:
            return self.start + (self.end - self.start) * progress
        return self.start * math.pow(self.end / self.start, progress)


@dataclass(frozen=True, slots=True)
class RandomArrivals:
    """A renewal process: gaps of mean ``1 / rate`` and gamma shape ``burstiness``."""

    rate: ConstantRate | RampedRate
    burstiness: float
    num_sessions: int
    seed: int

    def times(self, sessions: Iterable[Session]) -> Iterator[tuple[float, Session]]:
        """Each session with its time. The first arrives at 0."""
        rng = np.random.default_rng([self.seed, 1])
        last = max(self.num_sessions - 1, 1)
        now = 0.0
        for index, session in enumerate(sessions):
            yield now, session
            rate = self.rate.at(min(index / last, 1.0))
            if math.isfinite(rate):
                now += float(rng.gamma(self.burstiness, 1.0 / (rate * self.burstiness)))


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """The times of a trace, ``slowdown`` times further apart."""

    slowdown: float = 1.0

    def times(self, sessions: Iterable[Session]) -> Iterator[tuple[float, Session]]:
        first: float | None = None
        for session in sessions:
            if session.arrival_s is None:
                raise ConfigError(
                    "this workload has no timestamps; leave out --use-trace-timestamps, give --request-rate"
                )
            first = session.arrival_s if first is None else first
            yield (session.arrival_s - first) * self.slowdown, session


Arrivals = RandomArrivals | TraceArrivals
