"""One life of the engine process, seen from the parent.

Owns starting it, talking to it, and making sure that it is gone. It does not know requests, streams or what
the messages mean, and it is never restarted: a new life is a new object.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.core.config import EngineConfig
from headrace.core.errors import EngineDead, InvalidRequest
from headrace.engine.frame_socket import FrameError, frame
from headrace.engine.messages import (
    ChildStart,
    FromEngine,
    MalformedMessage,
    Shutdown,
    ToEngine,
    decode_from_engine,
    encode,
)
from headrace.engine.transport import Rendezvous, read_frame

logger = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-m", "headrace.engine.process")

CONNECT_TIMEOUT_S = 60.0
"""How long a fresh child may take to connect; it does so before it loads anything heavy."""

MAX_UNSENT_BYTES = 64 << 20
"""Bytes that may wait for a child that does not read, before new requests are refused."""

_LAST_WORDS_S = 0.5
"""For what a child wrote to the socket before it died; it is there already, only not read yet."""

DUMP_SIGNAL = signal.SIGUSR1
"""Makes an engine process write the stacks of all its threads; see ``process.run_child``."""

_EXIT_S = 0.5
"""For a child that hung up to be seen to exit, so that its exit code is its own and not that of our signal."""

_SENT_BY_OTHERS = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that did not end itself: faults of its own have other signals."""

_STDERR = 2


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended, in words, and whether something outside it and us ended it (the OOM killer, an operator)."""

    text: str
    is_by_others: bool


class EngineChild:
    """A running child process with its connection."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receive: Callable[[FromEngine], None],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._receive = receive
        self._is_ended_by_us = False
        self._unsent: list[bytes] = []
        self._reading = asyncio.create_task(self._read(), name="engine-child-reader")

    @classmethod
    async def spawn(
        cls, command: tuple[str, ...], config: EngineConfig, receive: Callable[[FromEngine], None]
    ) -> EngineChild:
        """Start ``command``, hand it its start line and wait until it has connected with its token.

        ``receive`` is called with every message. Raises ``EngineDead`` if the child exits or stays silent. The
        kernel ends the child with the thread that called this, so call it on one that lasts.
        """
        rendezvous = await Rendezvous.open()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=_STDERR,  # whatever a library prints must not end up in our own output
                start_new_session=True,  # Ctrl-C reaches the parent alone
            )
            try:
                await _hand_over(process, rendezvous, config)
                reader, writer = await _first_of_hello_and_exit(process, rendezvous)
            except BaseException:
                await _kill(process)
                raise
        finally:
            rendezvous.close()
        return cls(process, reader, writer, receive)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_congested(self) -> bool:
        """Whether too much waits to be read by the child for another request to be sent."""
        num_unsent = self._writer.transport.get_write_buffer_size() + sum(map(len, self._unsent))
        return num_unsent > MAX_UNSENT_BYTES

    def send(self, message: ToEngine) -> None:
        """Queue a message; one to a dead child goes nowhere. Raises ``InvalidRequest`` for text that is not Unicode.

        What is queued in one turn of the loop is written at its end in one piece: requests that belong together reach
        the engine together, and start in one step.
        """
        try:
            body = frame(encode(message))
        except (UnicodeEncodeError, FrameError) as error:
            raise InvalidRequest("the request is too large or has text that is not valid Unicode") from error
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(body)

    def _flush(self) -> None:
        body = b"".join(self._unsent)
        self._unsent.clear()
        if not self._writer.is_closing():  # uvloop refuses to write to a closed transport
            self._writer.write(body)

    async def wait_dead(self) -> None:
        """Return when the connection has ended or the process has exited, whichever is noticed first."""
        exited = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({exited, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not self._reading.done():
                await asyncio.wait({self._reading}, timeout=_LAST_WORDS_S)
        finally:
            await _cancel(exited)

    def kernel_state(self) -> str:
        """What the kernel has the process doing: ``T (stopped)``, ``D (disk sleep)``, ``S (sleeping)``..."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("State:"):
                    return line.removeprefix("State:").strip()
        return "state unknown"

    def wake(self) -> None:
        """Let a process that was stopped (SIGSTOP) go on; no effect on one that was not."""
        _signal(self._process, signal.SIGCONT)

    def dump_stacks(self) -> None:
        """Have the process write the stacks of its threads to standard error."""
        _signal(self._process, DUMP_SIGNAL)

    async def stop(self, grace_s: float) -> Ending:
        """Ask, terminate, kill, with ``grace_s`` before each next step; return how it ended."""
        self.send(Shutdown())
        try:
            await self._wait_exit(grace_s)
            _signal(self._process, signal.SIGTERM)
            await self._wait_exit(grace_s)
        finally:
            ending = await self.kill()
        return ending

    async def kill(self) -> Ending:
        """End it at once, unless it has; return how it ended."""
        if self._reading.done():
            await self._wait_exit(_EXIT_S)  # it hung up, so it is ending, and its own end says more than ours
        self._is_ended_by_us |= self._process.returncode is None
        await _kill(self._process)
        await _cancel(self._reading)
        self._writer.transport.abort()  # unlike close, does not wait for what nobody will read
        returncode = self._process.returncode
        return Ending(_ending(returncode), not self._is_ended_by_us and returncode in _SENT_BY_OTHERS)

    async def _wait_exit(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)

    async def _read(self) -> None:
        try:
            while (body := await read_frame(self._reader)) is not None:
                self._receive(decode_from_engine(body))
        except (FrameError, MalformedMessage) as error:
            logger.error("the engine process sent something that is no message (%s); hanging up", error)
        except Exception:
            logger.exception("a message of the engine process could not be handled; hanging up")
        self._writer.close()


async def _hand_over(process: asyncio.subprocess.Process, rendezvous: Rendezvous, config: EngineConfig) -> None:
    """Write the start line to the child's standard input; the token never shows in arguments or environment."""
    start = ChildStart(
        socket_path=str(rendezvous.path),
        token=rendezvous.token,
        parent_pid=os.getpid(),
        log_level=logging.getLogger("headrace").getEffectiveLevel(),
        config=msgspec.convert(config, EngineConfig, from_attributes=True),  # the engine's share of a larger config
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(start) + b"\n")
    with contextlib.suppress(ConnectionError):  # a child that died at once is reported as such, below
        await process.stdin.drain()
    process.stdin.close()


async def _first_of_hello_and_exit(
    process: asyncio.subprocess.Process, rendezvous: Rendezvous
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    hello = asyncio.create_task(rendezvous.accept())
    exited = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({hello, exited}, timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if exited.done() and not hello.done():
            await asyncio.wait({hello}, timeout=_LAST_WORDS_S)
        if hello.done():
            return hello.result()
        if exited.done():
            raise EngineDead(f"the engine process {_ending(process.returncode)} before it was up; its log says why")
        raise EngineDead(f"the engine process did not connect within {CONNECT_TIMEOUT_S:g} s")
    finally:
        await _cancel(hello)
        await _cancel(exited)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill and reap; shielded, because a cancelled caller must not leave a child behind."""
    _signal(process, signal.SIGKILL)
    await asyncio.shield(process.wait())


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal a process that has not been reaped.

    Not by ``process.send_signal``: that polls first, and a child that has just exited is then reaped behind the
    back of the event loop, which reports exit code 255 for it. Until the loop reaps it, its id is not reused.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "is still running"
    if returncode >= 0:
        return f"exited with code {returncode}"
    return f"was killed by {signal.Signals(-returncode).name}"
