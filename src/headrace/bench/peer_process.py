"""A server started by a command line of the user's: until it is ready, what it costs, and its end.

The command is run as it is given, without a shell, in a process group of its own that is ended as a whole. Its
output goes to a file, whose end is shown when it does not start.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from headrace.bench.install_size import install_bytes
from headrace.bench.process_watch import PROC
from headrace.bench.report import ServerInfo
from headrace.core.errors import ConfigError, RequestFailed
from headrace.engine.parent_death import request_death_with_parent

POLL_S = 0.05
STOP_S = 15.0
_LOG_CHARS = 600
_PORT_FLAGS = ("--port", "-p")


@dataclass(frozen=True, slots=True)
class PeerCommand:
    """``words`` with a port that is known, and what to call the server; ``environ`` is added to ours."""

    name: str
    words: tuple[str, ...]
    port: int
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A server that is ready; ``start_s`` is from its start to the first good answer of a readiness route."""

    command: PeerCommand
    pid: int
    start_s: float
    install_bytes: int | None

    def info(self, name: str) -> ServerInfo:
        """What a report says of it, before anybody has asked it for its model and version."""
        return ServerInfo(
            name=name,
            url=self.command.url,
            model="",
            command=str(self.command),
            start_s=self.start_s,
            install_bytes=self.install_bytes,
        )


def parse_command(text: str) -> PeerCommand:
    """``[NAME=]PROGRAM ARGUMENTS``, with ``--port N``, or ``{port}`` where a free one goes. Raises ``ConfigError``."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--start {text!r} cannot be read: {error}") from error
    if not words:
        raise ConfigError("--start is empty; give a command, such as --start 'llama-server -m FILE --port {port}'")
    name, equals, program = words[0].partition("=")
    if equals and "/" not in name:
        words[0] = program
    else:
        name = Path(words[0]).name
    if any("{port}" in word for word in words):
        port = free_port()
        return PeerCommand(name, tuple(word.replace("{port}", str(port)) for word in words), port)
    for flag, value in pairwise(words):
        if flag in _PORT_FLAGS and value.isdigit():
            return PeerCommand(name, tuple(words), int(value))
    raise ConfigError(f"--start {text!r} does not say on which port it listens; write --port {{port}} into it")


@contextmanager
def running(command: PeerCommand, timeout_s: float) -> Iterator[RunningPeer]:
    """Start it, wait until it answers, and stop it at the end. Raises ``ConfigError``, ``RequestFailed``."""
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command, no shell
                command.words,
                env={**os.environ, **command.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # no thread of ours runs yet; a benchmark that is killed leaves no server behind
                preexec_fn=request_death_with_parent,  # noqa: PLW1509
            )
        except OSError as error:
            raise ConfigError(f"cannot start {command.words[0]}: {error.strerror}; --start names a program") from error
        try:
            while not _answers(command.url):
                if process.poll() is not None:
                    raise RequestFailed(f"{command.name} ended with code {process.returncode}: {_end_of(log.fileno())}")
                if time.monotonic() - started > timeout_s:
                    raise RequestFailed(f"{command.name} was not ready after {timeout_s:g} s: {_end_of(log.fileno())}")
                time.sleep(POLL_S)
            start_s = time.monotonic() - started
            yield RunningPeer(command, process.pid, start_s, install_bytes(command.words[0]))
        finally:
            _stop(process)


def _answers(url: str) -> bool:
    """Whether the server says that it is ready; one without ``/health`` is asked for its models."""
    for path in ("/health", "/v1/models"):
        try:
            with urllib.request.urlopen(url + path, timeout=5):  # noqa: S310 - http to this machine
                return True
        except urllib.error.HTTPError as error:
            if error.code != 404:
                return False
        except OSError:
            return False
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As an operator would, then by force; the whole group, since engines have processes of their own."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline and (process.poll() is None or _has_group(process.pid)):
            time.sleep(POLL_S)
    process.wait()


def _has_group(group: int) -> bool:
    """Whether a process of the group is left that can still run; the dead may wait long for whoever reaps them."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(its_group) == group and state != "Z":
                return True
    return False


def _end_of(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _LOG_CHARS, max(0, size - _LOG_CHARS)).decode("utf-8", "replace")
    return " | ".join(line.strip() for line in text.splitlines()[-6:] if line.strip()) or "it said nothing"


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
