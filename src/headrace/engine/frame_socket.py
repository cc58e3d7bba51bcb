"""Length-prefixed frames over a unix socket, and the child's end of one.

Owns framing and its size limit. A frame is a 4-byte big-endian length followed by that many bytes; the length is
checked before anything is read, and memory is taken only as bytes arrive. Knows no event loop: the child has none, and
starts without loading one.
"""

from __future__ import annotations

import socket

MAX_FRAME_BYTES = 256 << 20
"""Far above any real step: prompt log-probabilities of 100k positions with 20 alternatives are 32 MiB."""

PREFIX_BYTES = 4


class FrameError(Exception):
    """The byte stream is not a sequence of frames within the limit."""


def frame(body: bytes) -> bytes:
    """``body`` with its length in front. Raises ``FrameError`` above ``MAX_FRAME_BYTES``."""
    check_length(len(body), MAX_FRAME_BYTES)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def check_length(length: int, limit: int) -> None:
    """Raise ``FrameError`` for a frame above ``limit`` bytes."""
    if length > limit:
        raise FrameError(f"a frame of {length} bytes exceeds the limit of {limit}")


class FrameSocket:
    """The child's blocking end: one thread may receive while another sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stream = connection.makefile("rb", buffering=1 << 16)

    @classmethod
    def connect(cls, path: str) -> FrameSocket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return cls(connection)

    def send(self, bodies: list[bytes]) -> None:
        """Send frames in one write; blocks while the other side does not read. Raises ``OSError``."""
        self._socket.sendall(b"".join(map(frame, bodies)))

    def receive(self) -> bytes | None:
        """The next frame's body, or ``None`` when the other side is gone. Raises ``FrameError``."""
        try:
            prefix = self._stream.read(PREFIX_BYTES)
            if not prefix:
                return None
            length = int.from_bytes(prefix, "big")
            check_length(length, MAX_FRAME_BYTES)
            body: bytes = self._stream.read(length)
        except ConnectionError:
            return None
        if len(prefix) < PREFIX_BYTES or len(body) < length:
            raise FrameError("the stream ended inside a frame")
        return body

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
