"""The clock of a load generator: what time it is, and waiting for a moment without missing it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.core.clock import WallClock

SPIN_S = 0.002


class Pacer(Protocol):
    """Seconds that only differences mean anything of, and the waiting for one of them."""

    def now(self) -> float: ...

    async def sleep_until(self, moment: float) -> None: ...


class WallPacer(WallClock):
    """The machine's clock. A timer may be late by a millisecond or two, so the end of a wait asks the clock instead."""

    async def sleep_until(self, moment: float) -> None:
        await asyncio.sleep(max(moment - self.now() - SPIN_S, 0.0))
        while self.now() < moment:  # noqa: ASYNC110 (the clock sets no event)
            await asyncio.sleep(0)
