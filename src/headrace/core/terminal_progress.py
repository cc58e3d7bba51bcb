"""Progress of offline work on one line of a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from headrace.core.progress import NullProgress, Progress, ProgressUnit
from headrace.core.units import format_bytes

_INTERVAL_S = 0.1
_BAR_CHARS = 24


class TerminalProgress:
    """Redraws one line at most ten times a second, and leaves it standing when a task is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._unit: ProgressUnit = "items"
        self._total: int | None = None
        self._done = 0
        self._started_at = 0.0
        self._drawn_at = 0.0

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        self._label, self._total, self._unit, self._done = label, total, unit, 0
        self._started_at = time.monotonic()
        self._draw(end="")

    def advance(self, amount: int) -> None:
        self._done += amount
        if time.monotonic() - self._drawn_at >= _INTERVAL_S:
            self._draw(end="")

    def finish(self) -> None:
        self._draw(end="\n")

    def _draw(self, end: str) -> None:
        self._drawn_at = time.monotonic()
        elapsed_s = self._drawn_at - self._started_at
        self._stream.write(f"\r\x1b[K{self._label}  {self._bar()}{self._amounts()}  {elapsed_s:.1f} s{end}")
        self._stream.flush()

    def _bar(self) -> str:
        if not self._total:
            return ""
        filled = min(_BAR_CHARS, _BAR_CHARS * self._done // self._total)
        return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] "

    def _amounts(self) -> str:
        def shown(amount: int) -> str:
            return format_bytes(amount) if self._unit == "bytes" else str(amount)

        return shown(self._done) if self._total is None else f"{shown(self._done)} / {shown(self._total)}"


def terminal_progress() -> Progress:
    """Progress on standard error where that is a terminal, else none: a library does not fill logs."""
    return TerminalProgress(sys.stderr) if sys.stderr.isatty() else NullProgress()
