"""Is B better than A, and how sure is that: ratios of figures with intervals, and a verdict for each and for all.

Works on whatever is a figure measured several times: runs of a server, iterations in-process. The ratio's interval
is Welch's on logarithms, at 95 %, so that it does not matter which of the two is the denominator.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from headrace.bench.statistics import student_t

DEFAULT_THRESHOLD = 0.05


class Direction(enum.Enum):
    """Which way is better."""

    HIGHER = "higher"
    LOWER = "lower"


class Figure(msgspec.Struct, frozen=True):
    """One quantity of one report, once for each run. ``unit`` is for people."""

    values: list[float]
    unit: str
    direction: Direction


Figures = Mapping[str, Figure]


class Verdict(enum.Enum):
    """What a ratio says; SAME is within the threshold, UNSURE is beyond it but not beyond chance."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNSURE = "unsure"


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """B by A of one figure. ``low`` and ``high`` are ``None`` where one of them was measured once.

    ``gain`` is above 1 when B is better, whichever way that is.
    """

    name: str
    unit: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None
    gain: float
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All figures that both have; ``is_worse`` is what continuous integration fails on."""

    a: str
    b: str
    threshold: float
    ratios: list[Ratio]

    @property
    def is_worse(self) -> bool:
        return any(ratio.verdict is Verdict.WORSE for ratio in self.ratios)

    @property
    def verdict(self) -> str:
        """One sentence."""
        names = {verdict: [r.name for r in self.ratios if r.verdict is verdict] for verdict in Verdict}
        parts = [
            f"{verdict.value}: {', '.join(names[verdict])}"
            for verdict in (Verdict.WORSE, Verdict.BETTER, Verdict.UNSURE)
            if names[verdict]
        ]
        return "; ".join(parts) or f"the same within {100 * self.threshold:g} %"


def compare(names: tuple[str, str], a: Figures, b: Figures, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Figures that both have and that are not 0, in A's order."""
    shared = [name for name in a if name in b and min(a[name].values) > 0 and min(b[name].values) > 0]
    ratios = [_ratio(name, a[name], b[name], threshold) for name in shared]
    return Comparison(a=names[0], b=names[1], threshold=threshold, ratios=ratios)


def _ratio(name: str, a: Figure, b: Figure, threshold: float) -> Ratio:
    center, half_width = log_ratio(a.values, b.values)
    ratio = math.exp(center)
    gain = ratio if a.direction is Direction.HIGHER else 1 / ratio
    return Ratio(
        name=name,
        unit=a.unit,
        a=float(np.mean(a.values)),
        b=float(np.mean(b.values)),
        ratio=ratio,
        low=None if half_width is None else math.exp(center - half_width),
        high=None if half_width is None else math.exp(center + half_width),
        gain=gain,
        verdict=_verdict(gain, half_width, threshold),
    )


def log_ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float | None]:
    """The logarithm of b by a, of geometric means, and half the width of its interval."""
    left, right = np.log(np.asarray(a)), np.log(np.asarray(b))
    center = float(right.mean() - left.mean())
    if min(len(left), len(right)) < 2:
        return center, None
    parts = float(left.var(ddof=1)) / len(left), float(right.var(ddof=1)) / len(right)
    total = sum(parts)
    if total == 0:
        return center, 0.0
    freedom = total**2 / (parts[0] ** 2 / (len(left) - 1) + parts[1] ** 2 / (len(right) - 1))
    return center, student_t(freedom) * math.sqrt(total)


def _verdict(gain: float, half_width: float | None, threshold: float) -> Verdict:
    change = abs(math.log(gain))
    if change <= math.log(1 + threshold):
        return Verdict.SAME
    if half_width is not None and change <= half_width:
        return Verdict.UNSURE
    return Verdict.BETTER if gain > 1 else Verdict.WORSE
