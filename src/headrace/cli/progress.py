"""What long work looks like on a terminal and in a log. Both are written to stderr; stdout is for results."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, TextIO

from headrace.core.progress import Progress, ProgressUnit
from headrace.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.progress import Progress as RichDisplay
    from rich.progress import TaskID

_STEP_PERCENT = 10


def terminal_progress() -> Progress:
    """A bar where stderr is a terminal, one line per tenth elsewhere."""
    return BarProgress() if sys.stderr.isatty() else LineProgress(sys.stderr)


class LineProgress:
    """One line at the start of a task, one for every tenth of it, and one at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._total: int | None = None
        self._unit: ProgressUnit = "items"
        self._done = 0
        self._num_steps_shown = 0

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done = 0
        self._num_steps_shown = 0
        self._write(f"{label} ({_amount(total, unit)})" if total else label)

    def advance(self, amount: int) -> None:
        self._done += amount
        if not self._total:
            return
        # The last tenth is the end's line, which is only written when the task is over.
        num_steps = min(100 * self._done // self._total // _STEP_PERCENT, 100 // _STEP_PERCENT - 1)
        if num_steps > self._num_steps_shown:
            self._num_steps_shown = num_steps
            self._write(f"{self._label}: {num_steps * _STEP_PERCENT} %")

    def finish(self) -> None:
        is_whole = self._total is not None and self._done >= self._total
        after = f" after {_amount(self._done, self._unit)}" if self._done else ""
        self._write(f"{self._label}: 100 %" if is_whole else f"{self._label}: ended{after}")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk under the log is no reason not to work
            print(line, file=self._stream, flush=True)


class BarProgress:
    """A bar with amount and remaining time; it stays when the task is over."""

    def __init__(self) -> None:
        self._display: RichDisplay | None = None
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Display

        counts: ProgressColumn = MofNCompleteColumn()
        if unit == "bytes":
            counts = DownloadColumn(binary_units=True)
        elif unit == "parameters":
            counts = TaskProgressColumn()
        self._display = Display(
            TextColumn("{task.description}"), BarColumn(), counts, TimeRemainingColumn(), console=Console(stderr=True)
        )
        self._display.start()
        self._task = self._display.add_task(escape(label), total=total)

    def advance(self, amount: int) -> None:
        if self._display is not None and self._task is not None:
            self._display.advance(self._task, amount)

    def finish(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None


def _amount(count: int, unit: ProgressUnit) -> str:
    if unit == "bytes":
        return format_bytes(count)
    return f"{format_count(count) if unit == 'parameters' else count} {unit}"
