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
        self._num_dropped = 0
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
            if isinstance(item, threading.Event):
                item.set()
                continue
            num_dropped, self._num_dropped = self._num_dropped, 0
            if num_dropped > 0:
                item = f"{num_dropped} lines of the log were dropped here, as nobody read it\n{item}"
            with contextlib.suppress(OSError):  # nobody reads it any more, and there is nowhere else to say so
                self._write(item.encode("utf-8", "backslashreplace") + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]
