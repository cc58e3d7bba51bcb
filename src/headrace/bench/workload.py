"""The words of a workload: sessions of turns, and the file they are kept in.

A single request is a session of one turn. A session says what is asked and, in a trace, when it arrives; it
does not know the endpoint, the server or the load. Every workload is written to a file before it is run and
read from there line by line, so that what a run replays is the file, and memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.core.errors import ConfigError

FORMAT_VERSION = 1
MAX_LINE_BYTES = 64 << 20

Line = TypeVar("Line")

Message = dict[str, object]
"""A chat message as it is sent: ``{"role": ..., "content": ...}``."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Either ``text`` (words or token ids) or ``messages`` says what is asked.

    In a later turn of a session both are what is new: what came before, with the server's own answers, is put
    in front when the turn is sent. ``num_input_tokens`` counts this turn's own tokens, ``None`` where nobody
    has counted. The request is sent ``think_s`` seconds after the answer before it. ``fields`` go into the
    body as they are (``n``, ``tools``, ``response_format``). A client that hangs up does so after
    ``abort_after_chunks`` chunks of output.
    """

    text: str | list[int] | None = None
    messages: list[Message] = []
    max_tokens: int
    num_input_tokens: int | None = None
    think_s: float = 0.0
    fields: dict[str, object] = {}
    abort_after_chunks: int | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one client does: turns, each waiting for the answer to the one before.

    ``group`` names the kind of client, for fairness between groups. ``arrival_s`` is when a trace has it
    arrive, in seconds from the trace's start. ``system`` is put in front of the first turn.
    """

    turns: list[Turn]
    group: str = ""
    arrival_s: float | None = None
    system: str | None = None


class WorkloadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a workload file: how it was made.

    ``options`` are the choices that, with the seed, made it. ``lengths`` says how prompt lengths were counted:
    ``"tokens"`` (token ids), ``"tokenizer"`` or ``"words"`` (about one token each).
    """

    headrace_workload: int = FORMAT_VERSION
    name: str
    seed: int
    num_sessions: int
    num_requests: int
    lengths: str = ""
    options: dict[str, object] = {}


@dataclass(frozen=True, slots=True)
class WorkloadFile:
    """A workload on disk; reading it again gives the same sessions again."""

    path: Path
    info: WorkloadInfo

    def sessions(self) -> Iterator[Session]:
        """The sessions in order. Raises ``ConfigError`` for a malformed line, naming it."""
        lines = read_lines(self.path)
        next(lines)
        return (decode_line(data, Session, self.path, number) for number, data in lines)


class WorkloadSource(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions that can be made, with what names them; ``sessions`` is consumed once."""

    name: str
    seed: int
    sessions: Iterable[Session]
    lengths: str = ""
    options: dict[str, object] = {}


def write_workload(source: WorkloadSource, path: Path) -> WorkloadFile:
    """Make every session and write it down. Raises ``ConfigError`` when there is none or the file cannot be written."""
    body = path.with_name(path.name + ".part")
    num_sessions = num_requests = 0
    try:
        with body.open("wb") as file:
            for session in source.sessions:
                file.write(msgspec.json.encode(session) + b"\n")
                num_sessions += 1
                num_requests += len(session.turns)
        info = WorkloadInfo(
            name=source.name,
            seed=source.seed,
            num_sessions=num_sessions,
            num_requests=num_requests,
            lengths=source.lengths,
            options=source.options,
        )
        _join(msgspec.json.encode(info) + b"\n", body, path)
    except OSError as error:
        raise ConfigError(f"cannot write the workload {path}: {error.strerror}") from error
    finally:
        body.unlink(missing_ok=True)
    if num_sessions == 0:
        raise ConfigError(f"the workload {source.name} is empty; raise --num-prompts or take another data set")
    return WorkloadFile(path, info)


def open_workload(path: Path) -> WorkloadFile:
    """A workload written before. Raises ``ConfigError`` for a file that is none."""
    number, first = next(read_lines(path), (1, b""))
    info = decode_line(first, WorkloadInfo, path, number)
    if info.headrace_workload != FORMAT_VERSION:
        raise ConfigError(
            f"{path} is of workload format {info.headrace_workload}, this version reads {FORMAT_VERSION}; make it anew"
        )
    return WorkloadFile(path, info)


def is_workload(path: Path) -> bool:
    """Whether a file begins like a workload of ours."""
    try:
        with path.open("rb") as file:
            return file.read(32).replace(b" ", b"").startswith(b'{"headrace_workload":')
    except OSError:
        return False


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines of a JSONL file that are not blank, with their numbers from 1. Raises ``ConfigError``."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ConfigError(f"{path} line {number} is longer than {MAX_LINE_BYTES >> 20} MiB; split it")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; --dataset-path names the file") from error


def decode_line(line: bytes, kind: type[Line], path: Path, number: int) -> Line:
    """One line as what it should be. Raises ``ConfigError`` naming file, line and what is wrong."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} line {number} is malformed: {error}; correct or remove that line") from error


def _join(head: bytes, body: Path, path: Path) -> None:
    with path.open("wb") as target, body.open("rb") as source:
        target.write(head)
        while piece := source.read(1 << 20):
            target.write(piece)
