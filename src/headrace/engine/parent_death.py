"""Dying with the parent process, however it died. Linux only; knows nothing of engines."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def request_death_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when the thread that started it ends (prctl(2)).

    Raises ``OSError`` if the kernel refuses. A parent that is already gone is not noticed: ask
    ``is_child_of`` afterwards.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def is_child_of(parent_pid: int) -> bool:
    return os.getppid() == parent_pid
