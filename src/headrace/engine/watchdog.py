"""The watch over one life of the engine process: it is asked for signs of life, and ended when it shows none.

Owns when a silent or stuck engine is given up, and that its stacks are in the log before it goes. It does not know
what happens next: a life that ends here ends like any other. Times are seconds.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from headrace.core.clock import Clock
from headrace.engine.child import EngineChild
from headrace.engine.life_signs import LifeSigns
from headrace.engine.messages import Ping

logger = logging.getLogger(__name__)

STRIKES = 3
"""Pings in a row that must find the engine stuck. After one, it may be our own event loop that was late."""

WAKE_S = 0.5
"""For a process that was stopped to speak up again."""

DUMP_S = 1.0
"""For the engine to write its stacks; also its last chance to go on."""


@dataclass(frozen=True, slots=True)
class Watchdog:
    """Watches ``child`` by ``signs``: a silence, or the excess of a step, longer than ``hang_limit_s`` is its end."""

    child: EngineChild
    signs: LifeSigns
    clock: Clock
    ping_interval_s: float
    hang_limit_s: float

    async def run(self) -> None:
        """Ping for ever; returns after it has killed an engine that hung."""
        num_strikes = 0
        while num_strikes < STRIKES:
            await asyncio.sleep(self.ping_interval_s)
            self.child.send(Ping())
            num_strikes = num_strikes + 1 if self._is_stuck() else 0
            if num_strikes == STRIKES and await self._goes_on():
                num_strikes = 0
        logger.error("the engine process (pid %d) is still stuck and is killed", self.child.pid)
        await self.child.kill()

    def _is_stuck(self) -> bool:
        now = self.clock.now()
        return max(self.signs.silence_s(now), self.signs.tick_excess_s()) > self.hang_limit_s

    async def _goes_on(self) -> bool:
        """Wake the process, in case it was stopped; then have the stacks of its threads written to standard error.

        In this order: writing them while the threads run on again may crash the process.
        """
        now = self.clock.now()
        logger.error(
            "the engine process (pid %d, %s) hangs: nothing heard for %.1f s, its step takes %.1f s and was foretold "
            "to take %.1f s (limit %g s)",
            self.child.pid,
            self.child.kernel_state(),
            self.signs.silence_s(now),
            self.signs.tick_age_s(),
            self.signs.expected_s,
            self.hang_limit_s,
        )
        self.child.wake()
        await asyncio.sleep(WAKE_S)
        if self._is_stuck():
            logger.error("the stacks of its threads follow")
            self.child.dump_stacks()
            await asyncio.sleep(DUMP_S)
        return not self._is_stuck()
