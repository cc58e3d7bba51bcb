"""The arithmetic of reports: percentiles, spreads, intervals, fairness. Pure; knows no request.

A percentile is interpolated linearly between the two nearest ranks (NumPy's default, and so vLLM's and
SGLang's). An interval over repeats is Student's t at 95 %.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

MAX_EXACT_VALUES = 1 << 20
RELATIVE_ERROR = 0.005
_BASE = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_MIN_VALUE = 1e-6

PERCENTILES = (1, 2, 5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 95, 98, 99, 99.5, 99.9)
_NAMES = tuple(f"p{rank:g}" for rank in PERCENTILES)

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t, two-sided 95 %, for 1 to 15 degrees of freedom."""


class Spread(msgspec.Struct, frozen=True):
    """How values are spread; all 0 where there are none. ``percentiles`` are by name: ``p50``, ``p99.9``."""

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0
    percentiles: dict[str, float] = {}

    @property
    def median(self) -> float:
        return self.percentile(50)

    def percentile(self, rank: float) -> float:
        return self.percentiles[f"p{rank:g}"] if self.count else 0.0


class Estimate(msgspec.Struct, frozen=True):
    """A mean over repeats; ``half_width`` of its 95 % interval is ``None`` for a single one."""

    mean: float
    half_width: float | None = None

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0.0)


def percentile(values: Sequence[float] | np.ndarray, rank: float) -> float:
    """``rank`` in [0, 100]; 0 for no values."""
    return float(np.percentile(np.asarray(values, np.float64), rank)) if len(values) else 0.0


def spread(values: Sequence[float] | np.ndarray) -> Spread:
    array_ = np.asarray(values, np.float64)
    if not array_.size:
        return Spread()
    percentiles = dict(zip(_NAMES, np.percentile(array_, PERCENTILES).tolist(), strict=True))
    return Spread(
        int(array_.size),
        float(array_.mean()),
        float(array_.std()),
        float(array_.min()),
        float(array_.max()),
        percentiles,
    )


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of repeats and how far it can be trusted."""
    if len(values) < 2:
        return Estimate(values[0] if values else 0.0)
    deviation = float(np.std(np.asarray(values, np.float64), ddof=1))
    return Estimate(float(np.mean(values)), student_t(len(values) - 1) * deviation / math.sqrt(len(values)))


def student_t(freedom: float) -> float:
    """Student's t, two-sided 95 %; between whole degrees of freedom it is that of the lower, to be safe."""
    whole = max(int(freedom), 1)
    return _T_95[whole - 1] if whole <= len(_T_95) else 1.96 + 2.5 / whole


def jain_index(shares: Sequence[float]) -> float:
    """Fairness of shares (Jain, Chiu, Hawe 1984): 1 when all are equal, 1/n when one has everything."""
    total = sum(shares)
    squares = sum(share * share for share in shares)
    return total * total / (len(shares) * squares) if squares else 1.0


class ValueStore:
    """Many values in bounded memory. *Mutable.*

    The first million are kept as they are and percentiles of them are exact. With more, values are counted in
    buckets whose width is 1 % of their value (DDSketch; Masson, Rim, Lee 2019): percentiles are then right to
    half a percent, and means and extremes stay exact.
    """

    def __init__(self, max_exact: int = MAX_EXACT_VALUES) -> None:
        self._max_exact = max_exact
        self._exact: array[float] = array("d")
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._total = 0.0
        self._squares = 0.0
        self._minimum = math.inf
        self._maximum = -math.inf

    @property
    def is_exact(self) -> bool:
        return not self._buckets

    def extend(self, values: Iterable[float]) -> None:
        self._exact.extend(values)
        if self._buckets or len(self._exact) > self._max_exact:
            self._spill()

    def spread(self) -> Spread:
        if self.is_exact:
            return spread(np.frombuffer(self._exact, np.float64) if self._exact else [])
        self._spill()
        mean = self._total / self._count
        deviation = math.sqrt(max(0.0, self._squares / self._count - mean * mean))
        ranks = {name: self._rank(rank) for name, rank in zip(_NAMES, PERCENTILES, strict=True)}
        return Spread(self._count, mean, deviation, self._minimum, self._maximum, ranks)

    def histogram(self, edges: Sequence[float]) -> list[int]:
        """How many values lie in ``[edges[i], edges[i + 1])``."""
        if self.is_exact:
            values = np.frombuffer(self._exact, np.float64) if self._exact else np.zeros(0)
            weights = None
        else:
            self._spill()
            values = np.array([_value_of(bucket) for bucket in self._buckets])
            weights = np.array(list(self._buckets.values()), np.float64)
        counts, _ = np.histogram(values, np.asarray(edges), weights=weights)
        return [int(count) for count in counts]

    def _spill(self) -> None:
        if not self._exact:
            return
        values = np.array(self._exact)
        self._exact = array("d")
        self._count += values.size
        self._total += float(values.sum())
        self._squares += float((values * values).sum())
        self._minimum = min(self._minimum, float(values.min()))
        self._maximum = max(self._maximum, float(values.max()))
        buckets = np.ceil(np.log(np.maximum(values, _MIN_VALUE)) / _BASE).astype(np.int64)
        for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True):
            self._buckets[int(bucket)] = self._buckets.get(int(bucket), 0) + int(count)

    def _rank(self, rank: float) -> float:
        wanted = rank / 100 * (self._count - 1)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen > wanted:
                return min(max(_value_of(bucket), self._minimum), self._maximum)
        return self._maximum


def _value_of(bucket: int) -> float:
    """The middle of a bucket, in the sense that keeps the relative error even."""
    return 2 * math.exp(bucket * _BASE) / (math.exp(_BASE) + 1)
