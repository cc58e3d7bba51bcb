"""How short memory is: judged now and then, from what the machine has left and what the caches may yet take.

Owns the thresholds. It reads no files itself and does nothing about the level but say in the log when it changes;
``relief.py`` acts on it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Final, Protocol

from headrace.core.errors import ConfigError
from headrace.core.memory_pressure import MemoryState, PressureLevel
from headrace.core.units import format_bytes
from headrace.executor.machine_memory import MemoryReading

logger = logging.getLogger(__name__)

READ_INTERVAL_S: Final = 0.5

SCARCE_SHARE: Final = 0.05
CRITICAL_SHARE: Final = 0.02
"""Shares of all memory that must be left, as Envoy's overload manager has them by default..."""

SCARCE_BYTES: Final = 512 << 20
CRITICAL_BYTES: Final = 192 << 20
"""...but so much is enough, however large the machine."""

TIGHT_STALLS: Final = 0.05
SCARCE_STALLS: Final = 0.20
"""Shares of time in which nothing ran for want of memory. Stalls alone end no request: they say that memory is short,
not whose it is."""

RELIEF: Final = 1.25
"""A level is left when there is so many times what it was entered for, or it would come and go with every request."""

_MEANING: Final = {
    PressureLevel.CALM: "memory is no longer short",
    PressureLevel.TIGHT: "memory is tight: caches grow no further",
    PressureLevel.SCARCE: "memory is scarce: new requests are refused",
    PressureLevel.CRITICAL: "memory is about to run out: requests of the lowest tier are ended",
}


class MemoryGauge(Protocol):
    """Where readings come from: the machine, or a test. ``read`` may raise ``ConfigError`` or ``OSError``."""

    def read(self) -> MemoryReading: ...


class MemoryWatch:
    """Keeps the state of memory up to date. ``state`` may be asked from any thread, as often as one likes.

    ``untaken_bytes`` says how much the caches may yet take that they have never touched.
    """

    def __init__(self, gauge: MemoryGauge, untaken_bytes: Callable[[], int]) -> None:
        self._gauge = gauge
        self._untaken_bytes = untaken_bytes
        self._state = MemoryState(PressureLevel.CALM, 0)
        self._next_time = -math.inf
        self._lock = threading.Lock()

    def state(self, now: float) -> MemoryState:
        """The state as of the latest reading, which is at most ``READ_INTERVAL_S`` old."""
        if now >= self._next_time:
            with self._lock:
                if now >= self._next_time:
                    self._next_time = now + READ_INTERVAL_S
                    self._read()
        return self._state

    def _read(self) -> None:
        try:
            reading = self._gauge.read()
        except (ConfigError, OSError):  # no descriptor left, say: what was known is still the best guess
            return
        before = self._state.level
        level = judge(reading, self._untaken_bytes(), before)
        self._state = MemoryState(level, reading.available_bytes)
        if level is not before:
            logger.log(
                logging.WARNING if level > before else logging.INFO,
                "%s; %s of %s are left, and %.0f %% of the time goes into waiting for memory",
                _MEANING[level],
                format_bytes(reading.available_bytes),
                format_bytes(reading.capacity_bytes),
                100 * reading.stalled_share,
            )


def judge(reading: MemoryReading, untaken_bytes: int, before: PressureLevel) -> PressureLevel:
    """The level that a reading means, coming from the level ``before``."""
    scarce_bytes = min(SCARCE_SHARE * reading.capacity_bytes, SCARCE_BYTES)
    critical_bytes = min(CRITICAL_SHARE * reading.capacity_bytes, CRITICAL_BYTES)
    when_full_bytes = reading.available_bytes - untaken_bytes
    for level, left_bytes, least_bytes, most_stalls in (
        (PressureLevel.CRITICAL, reading.available_bytes, critical_bytes, math.inf),
        (PressureLevel.SCARCE, reading.available_bytes, scarce_bytes, SCARCE_STALLS),
        (PressureLevel.TIGHT, when_full_bytes, critical_bytes, TIGHT_STALLS),
    ):
        margin = RELIEF if level <= before else 1.0
        if left_bytes < margin * least_bytes or reading.stalled_share > most_stalls / margin:
            return level
    return PressureLevel.CALM
