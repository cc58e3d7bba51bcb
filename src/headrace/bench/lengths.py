"""Token counts by distribution, as people write them on a command line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import ConfigError

MAX_LENGTH = 1 << 24

_FORMS = "N, LOW-HIGH, normal:MEAN:STD, lognormal:MEDIAN:SIGMA or exponential:MEAN"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths, at least 1: ``kind`` and its one or two numbers."""

    kind: str
    first: float
    second: float = 0.0

    def draw(self, rng: np.random.Generator) -> int:
        if self.kind == "uniform":
            value = float(rng.integers(int(self.first), int(self.second), endpoint=True))
        elif self.kind == "normal":
            value = rng.normal(self.first, self.second)
        elif self.kind == "lognormal":
            value = self.first * rng.lognormal(0.0, self.second)
        else:
            value = rng.exponential(self.first)
        return min(max(1, round(value)), MAX_LENGTH)


_KINDS = {"normal": 2, "lognormal": 2, "exponential": 1}


def parse_lengths(text: str, flag: str, range_ratio: float = 0.0) -> Lengths:
    """``512``, ``100-900``, ``lognormal:512:0.8``. Raises ``ConfigError`` naming ``flag``.

    ``range_ratio`` widens a plain ``N`` to ``[N (1 - r), N (1 + r)]``, vLLM's rule.
    """
    kind, *numbers = text.split(":")
    try:
        if not numbers:
            low, dash, high = kind.partition("-")
            first = int(low)
            second = int(high) if dash else first
            if not dash:
                first, second = math.floor(first * (1 - range_ratio)), math.ceil(second * (1 + range_ratio))
            return _checked(Lengths("uniform", max(first, 1), second), text, flag)
        values = [float(number) for number in numbers]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a length; write {_FORMS}") from None
    if _KINDS.get(kind) != len(values):
        raise ConfigError(f"{flag} {text!r} is not a length; write {_FORMS}")
    return _checked(Lengths(kind, *values), text, flag)


def _checked(lengths: Lengths, text: str, flag: str) -> Lengths:
    is_ordered = lengths.kind != "uniform" or lengths.first <= lengths.second
    is_small = all(math.isfinite(value) and 0 <= value <= MAX_LENGTH for value in (lengths.first, lengths.second))
    if not (is_ordered and is_small and lengths.first > 0):
        raise ConfigError(f"{flag} {text!r} must be between 1 and {MAX_LENGTH} tokens, the smaller number first")
    return lengths
