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
