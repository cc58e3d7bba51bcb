"""What an engine does when memory gets short: caches stop growing, new requests are refused, the lowest tier is shed.

In this order, as the level rises (``core/memory_pressure.py``). It does not measure: the level is asked of a watch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Final, Protocol

from headrace.core.errors import Overloaded, RequestShed
from headrace.core.memory_pressure import UNWATCHED, GrowingCache, MemoryState, PressureLevel
from headrace.core.sequence import Sequence
from headrace.scheduler.shedding import to_shed

RETRY_AFTER_S: Final = 5.0

SHED_INTERVAL_S: Final = 0.5
"""Time to see whether what was ended was enough."""


class WatchesMemory(Protocol):
    """Says how short memory is, as often as it is asked."""

    def state(self, now: float) -> MemoryState: ...


class Unwatched:
    """For engines whose memory nobody measures."""

    def state(self, now: float) -> MemoryState:
        return UNWATCHED


class Relief:
    """Gives way to memory pressure on behalf of one engine. One thread only."""

    def __init__(self, watch: WatchesMemory, caches: SequenceOf[GrowingCache]) -> None:
        self.watch = watch
        self._caches = caches
        self._is_growth_stopped = False
        self._next_shed_time = -math.inf

    def settle_caches(self, now: float) -> None:
        """Let the caches grow, or not, as the level wants it."""
        is_tight = self.watch.state(now).level >= PressureLevel.TIGHT
        if is_tight is self._is_growth_stopped:
            return
        self._is_growth_stopped = is_tight
        for cache in self._caches:
            if is_tight:
                cache.stop_growing()
            else:
                cache.resume_growing()

    def admit(self, now: float) -> None:
        """Agree to take in a new request. Raises ``Overloaded`` while memory is scarce."""
        if self.watch.state(now).level >= PressureLevel.SCARCE:
            raise Overloaded("the server is short of memory and takes no new requests; try again", RETRY_AFTER_S)

    def shed(self, sequences: Iterable[Sequence], now: float) -> str | None:
        """The request among those of ``sequences`` that is to be ended now, if one is: at most one at a time."""
        if now < self._next_shed_time or self.watch.state(now).level < PressureLevel.CRITICAL:
            return None
        self._next_shed_time = now + SHED_INTERVAL_S
        victim = to_shed(sequences)
        return None if victim is None else victim.request.request_id


def shed_error() -> RequestShed:
    """What the caller of a request that was shed is told."""
    return RequestShed("the server ran out of memory and ended requests of the lowest tier; try again", RETRY_AFTER_S)
