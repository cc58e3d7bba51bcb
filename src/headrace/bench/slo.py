"""Service level objectives of a benchmark: limits that a request meets or misses as a whole."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.bench.record import RequestRecord
from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion


class SloMetric(enum.Enum):
    """What can be limited; times of one request, in milliseconds where people write them."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    STALL = "stall"
    """The longest gap between two chunks of the request."""


_SPELLINGS = {metric.value: metric for metric in SloMetric} | {"e2el": SloMetric.E2E, "latency": SloMetric.E2E}


@dataclass(frozen=True, slots=True)
class Slo:
    """``metric`` must not be above ``limit_s``."""

    metric: SloMetric
    limit_s: float

    def is_met(self, record: RequestRecord) -> bool:
        """A request that failed meets nothing; a reply of one token has no time per token and no gap."""
        if not record.is_ok:
            return False
        value = {
            SloMetric.TTFT: record.ttft_s,
            SloMetric.TPOT: record.tpot_s,
            SloMetric.E2E: record.e2e_s,
            SloMetric.STALL: record.worst_gap_s,
        }[self.metric]
        return value is None or value <= self.limit_s

    def __str__(self) -> str:
        return f"{self.metric.value}:{self.limit_s * 1e3:g}"


def parse_slos(words: Iterable[str]) -> tuple[Slo, ...]:
    """``["ttft:500", "tpot:33"]``, in milliseconds. Raises ``ConfigError``."""
    slos = tuple(_parse(word) for word in words)
    metrics = [slo.metric for slo in slos]
    for metric in set(metrics):
        if metrics.count(metric) > 1:
            raise ConfigError(f"--slo names {metric.value} {metrics.count(metric)} times; give one limit for each")
    return slos


def meets_all(record: RequestRecord, slos: Sequence[Slo]) -> bool:
    return record.is_ok and all(slo.is_met(record) for slo in slos)


def _parse(word: str) -> Slo:
    name, colon, limit = word.partition(":")
    metric = _SPELLINGS.get(name.lower())
    if metric is None or not colon:
        known = ", ".join(f"{metric.value}:MS" for metric in SloMetric)
        raise ConfigError(
            f"--slo {word!r} is not NAME:MILLISECONDS{suggestion(name, list(_SPELLINGS))}; known: {known}"
        )
    try:
        limit_ms = float(limit)
    except ValueError:
        limit_ms = math.nan
    if not (math.isfinite(limit_ms) and limit_ms > 0):
        raise ConfigError(f"--slo {word!r}: {limit!r} is not a number of milliseconds above 0")
    return Slo(metric, limit_ms / 1e3)
