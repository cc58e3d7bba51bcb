"""Time as an argument: the only place the engine asks what time it is.

The scheduler never holds a clock; it receives ``now``. A clock that jumps by predicted step times turns
the same engine into a simulator.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of seconds; only differences between two readings mean anything."""

    def now(self) -> float: ...


class WallClock:
    """The machine's monotonic clock, whose readings are comparable between processes of one machine."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """Simulated seconds: the time moves only when a step is said to have taken some, or when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so much time pass, which is never negative."""
        assert seconds >= 0.0
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Jump to a moment that is not in the past."""
        assert moment >= self._now
        self._now = moment
