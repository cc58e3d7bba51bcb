"""How short memory is: the words that those who measure it and those who give way share."""

from __future__ import annotations

import enum
from typing import Final, Protocol

import msgspec


class PressureLevel(enum.IntEnum):
    """What is asked for; each level includes what the ones below it ask."""

    CALM = 0
    """Nothing."""

    TIGHT = 1
    """Caches take no memory they have not taken before."""

    SCARCE = 2
    """New requests are refused."""

    CRITICAL = 3
    """Requests of the lowest tier are ended, one after another."""


class MemoryState(msgspec.Struct, frozen=True, array_like=True):
    """The level, and how much memory the machine or the container still has to give."""

    level: PressureLevel
    available_bytes: int


UNWATCHED: Final = MemoryState(PressureLevel.CALM, 0)
"""Where nobody measures."""


class GrowingCache(Protocol):
    """Something that takes memory as it fills, of which none is lost by not taking more."""

    def stop_growing(self) -> None:
        """From now on make do with the memory that was taken already, where that is possible."""
        ...

    def resume_growing(self) -> None: ...
