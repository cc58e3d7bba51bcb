"""Ctrl-C at a safe place: between two steps, never inside one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredInterrupt:
    """While entered, the first Ctrl-C sets ``is_pending`` and the second raises ``KeyboardInterrupt`` at once.

    Does nothing where Python's own handler is not in force: in other threads, under an event loop, or when
    the program handles SIGINT itself.
    """

    def __init__(self) -> None:
        self.is_pending = False
        self._is_installed = False

    def __enter__(self) -> DeferredInterrupt:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._is_installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.is_pending = True
        self._restore()

    def _restore(self) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_installed = False
