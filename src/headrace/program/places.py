"""Where in the caller's program something was written, for the words of an error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

_OWN = str(Path(__file__).parent)


def caller_place() -> str:
    """``judge.py:12 in judge``: the innermost line of the calling thread that is not this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def place_of(error: BaseException, function: Callable[..., object]) -> str:
    """The innermost line of ``function``'s file that ``error`` came through."""
    filename = function.__code__.co_filename if isinstance(function, FunctionType) else ""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == filename:
            place = f"{Path(filename).name}:{line} in {frame.f_code.co_name}"
    return place
