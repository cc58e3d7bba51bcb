"""Keeps Ctrl-C out of where it does harm."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let an interrupt wait for the end of the block, and raise ``KeyboardInterrupt`` there.

    For imports: a native module whose initialisation is broken off by an exception may crash the process. Start no
    thread and no process in the block; they would never hear an interrupt.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
