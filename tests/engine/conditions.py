"""Waiting for something to become true, with a deadline; the only way tests of this folder wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 20.0
"""For what must happen but has no bound of its own; the machine may be busy."""


async def eventually(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
    """Return how many seconds it took until ``condition`` was true; fail after ``within_s``."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s} s: {condition}"
        await asyncio.sleep(0.005)
    return time.monotonic() - start


def eventually_sync(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
    async def wait() -> float:
        return await eventually(condition, within_s)

    return asyncio.run(wait())


def is_running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used so far, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
