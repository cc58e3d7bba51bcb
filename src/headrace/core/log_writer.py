"""A log that nobody waits for.

A write to a pipe that is full waits until somebody reads: a collector that hangs, a terminal that was stopped or a
parent that forgot the pipe would stop the server with it, in the middle of its event loop. So lines go through a queue
to a thread that writes them. Where too many wait, further ones are dropped, counted, and the count is written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from io import UnsupportedOperation
from typing import Final, TextIO

MAX_WAITING_LINES: Final = 10_000
CLOSE_PATIENCE_S: Final = 1.0
"""How long the end of a process waits for its last lines to be taken."""


def log_handler(stream: TextIO) -> logging.Handler:
    """A handler that writes to ``stream``: by its descriptor and without waiting, if it has one."""
    try:
        return LogWriter(stream.fileno())
    except (UnsupportedOperation, AttributeError, ValueError):
        return logging.StreamHandler(stream)


class LogWriter(logging.Handler):
    """Writes to a file descriptor from a thread of its own. ``flush`` waits, but not for ever."""

    def __init__(self, descriptor: int, max_lines: int = MAX_WAITING_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_lines = max_lines
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._num_dropped = 0  # counted by those who log, one at a time (``logging.Handler`` locks), and never set back
        self._num_told = 0  # how many of them the log says: the writing thread's
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._lines.qsize() < self._max_lines:
            self._lines.put(line)
        else:
            self._num_dropped += 1

    def flush(self) -> None:
        written = threading.Event()
        self._lines.put(written)
        written.wait(CLOSE_PATIENCE_S)

    def _write_all(self) -> None:
        while True:
            item = self._lines.get()
            num_dropped = self._num_dropped - self._num_told
            if num_dropped > 0:
                self._write(f"log lines dropped here, as nobody read them: {num_dropped}")
                self._num_told += num_dropped
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._write(item)

    def _write(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with contextlib.suppress(OSError):  # nobody reads it any more, and there is nowhere else to say so
            while data:
                data = data[os.write(self._descriptor, data) :]
