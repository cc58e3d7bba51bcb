"""The parent's end of the socket to its child, and the private place where the two meet.

Owns the socket's file permissions and the token check. It does not know what a frame means beyond the first one
(``Hello``).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.engine.frame_socket import MAX_FRAME_BYTES, PREFIX_BYTES, FrameError, check_length
from headrace.engine.messages import Hello, MalformedMessage, decode_from_engine

logger = logging.getLogger(__name__)

MAX_HELLO_BYTES = 1024
HELLO_TIMEOUT_S = 10.0
MAX_UNKNOWN_CONNECTIONS = 16
_MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, less the terminating zero


async def read_frame(reader: asyncio.StreamReader, max_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """The next frame's body, or ``None`` at the end of the stream. Raises ``FrameError``."""
    try:
        prefix = await reader.readexactly(PREFIX_BYTES)
        length = int.from_bytes(prefix, "big")
        check_length(length, max_bytes)
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        if error.partial or error.expected != PREFIX_BYTES:
            raise FrameError("the stream ended inside a frame") from None
        return None
    except ConnectionError:
        return None


class Rendezvous:
    """A socket (0600) in a fresh folder (0700) that lets in exactly one peer: the one with the token.

    Everyone else is hung up on. The folder is gone as soon as the peer is in, or on ``close``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "engine.sock"
        self.token = secrets.token_hex(32)
        self._accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )
        self._unknown: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_taken = False

    @classmethod
    async def open(cls) -> Rendezvous:
        """Start listening. Raises ``ConfigError`` when the temporary folder's path is too long for a socket."""
        folder = Path(tempfile.mkdtemp(prefix="headrace-"))  # mkdtemp makes it 0700
        rendezvous = cls(folder)
        try:
            length = len(os.fsencode(rendezvous.path))
            if length > _MAX_SOCKET_PATH_BYTES:
                raise ConfigError(
                    f"the socket path {rendezvous.path} has {length} bytes but a unix socket's may have "
                    f"{_MAX_SOCKET_PATH_BYTES}; set TMPDIR to a shorter folder"
                )
            rendezvous._server = await asyncio.start_unix_server(rendezvous._admit, rendezvous.path)
            rendezvous.path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except BaseException:
            rendezvous.close()
            raise
        return rendezvous

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Wait, without limit, for the peer that knows the token."""
        streams = await asyncio.shield(self._accepted)
        self._is_taken = True
        self.close()
        return streams

    def close(self) -> None:
        """Stop listening, hang up on everyone and remove the folder; only a connection that was taken stays."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._unknown:
            writer.close()
        if self._accepted.done() and not self._is_taken:
            self._accepted.result()[1].close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._unknown) >= MAX_UNKNOWN_CONNECTIONS:
            writer.close()
            return
        self._unknown.add(writer)
        try:
            is_known = await _says_hello(reader, self.token)
        finally:
            self._unknown.discard(writer)
        is_open = self._server is not None and not self._accepted.done()
        if is_known and is_open:
            self._accepted.set_result((reader, writer))
        else:
            logger.warning("hung up on a connection to the engine socket without the token or after its time")
            writer.close()


async def _says_hello(reader: asyncio.StreamReader, token: str) -> bool:
    try:
        body = await asyncio.wait_for(read_frame(reader, MAX_HELLO_BYTES), HELLO_TIMEOUT_S)
        message = None if body is None else decode_from_engine(body)
    except (TimeoutError, FrameError, MalformedMessage):
        return False
    return isinstance(message, Hello) and hmac.compare_digest(message.token.encode(), token.encode())
