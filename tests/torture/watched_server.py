"""``headrace`` with its event loop watched closely: the lag gauge holds the worst lag since the last SIGUSR2.

``python -m tests.torture.watched_server serve MODEL``; a server of its own process, like any other.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from headrace.cli.main import main
from headrace.core.clock import Clock

PERIOD_S = 0.001


async def watch_closely(clock: Clock, observe: Callable[[float], None]) -> None:
    """Like ``watch_loop_lag``, a hundred times as often."""
    worst = 0.0

    def forget() -> None:
        nonlocal worst
        worst = 0.0

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, forget)
    while True:
        due = clock.now() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        worst = max(worst, clock.now() - due)
        observe(worst)


if __name__ == "__main__":
    from headrace.server import app

    app.watch_loop_lag = watch_closely
    sys.exit(main())
