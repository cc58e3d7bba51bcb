"""How late the event loop is: the time that its longest recent callback held everyone up.

Owns the sampling. A callback that blocks between two samples makes the next one late by what it had left to run, so
the period bounds what can be missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.core.clock import Clock

PERIOD_S = 0.1
WINDOW = 100
"""Samples of which the worst is shown: ten seconds, so that a scrape does not miss a stall."""


async def watch_loop_lag(clock: Clock, observe: Callable[[float], None]) -> None:
    """Report the worst lag of the window, in seconds, after each sample; runs until it is cancelled."""
    recent: deque[float] = deque(maxlen=WINDOW)
    while True:
        due = clock.now() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        recent.append(max(0.0, clock.now() - due))
        observe(max(recent))
