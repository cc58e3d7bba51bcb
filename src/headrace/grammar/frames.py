"""Byte strings on a pipe: a length of four bytes, then so many bytes."""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct("<I")


def write_frame(target: IO[bytes], body: bytes) -> None:
    """Write and flush one frame. Raises ``OSError`` if nobody reads any more."""
    target.write(_LENGTH.pack(len(body)) + body)
    target.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """The next frame, or ``None`` at the end of the stream, also one in the middle of a frame."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    body = source.read(size)
    return body if len(body) == size else None
