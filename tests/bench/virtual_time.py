"""An event loop whose time passes only while everybody waits, so that seconds cost nothing and are exact.

When no callback is ready and no socket has data, the clock jumps to the next timer. Sockets must be of this
process and of a kind that delivers within the sending call: unix sockets are, TCP may not be.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Asks the sockets; if they have nothing, lets ``now`` jump by what the loop would have waited."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        assert timeout is not None, "everybody waits and no timer is set: the test would hang"
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class VirtualPacer:
    """The running loop's clock; its waits are exact."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep_until(self, moment: float) -> None:
        await asyncio.sleep(max(moment - self.now(), 0.0))


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
