"""What API process and engine process say to each other.

Owns the message types and their MessagePack form. It does not know sockets, processes or who sends what
when. Nothing here can carry code: msgspec decodes into these types or refuses.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from headrace.core.client import EngineInfo, StepStats
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, EngineDead, HeadraceError, InvalidRequest, Overloaded, ShuttingDown
from headrace.core.memory_pressure import UNWATCHED, MemoryState
from headrace.core.progress import ProgressUnit
from headrace.core.request import Request, RequestOutput, SequenceProgress
from headrace.core.timeline import SequenceTimeline


class ChildStart(msgspec.Struct, frozen=True, kw_only=True):
    """The one line of JSON a child reads from its standard input before anything else."""

    socket_path: str
    token: str
    parent_pid: int
    log_level: int
    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    request: Request


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Carry on a request that an earlier engine process began; one entry of ``progress`` for each sequence."""

    request: Request
    progress: list[SequenceProgress]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    request_id: str


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="confirm"):
    """A request that was made on a guess is wanted."""

    request_id: str


class ClearCache(msgspec.Struct, frozen=True, array_like=True, tag="clear_cache"):
    """Forget every cached prefix that no running sequence uses."""


class AskTimeline(msgspec.Struct, frozen=True, array_like=True, tag="ask_timeline"):
    """Asks where the time of a request went; answered with the same ``question_id`` between two steps."""

    question_id: int
    request_id: str


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Asks for a ``Pong``; answered by a thread that is not the engine's."""


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """The server is going away: refuse what has not begun to run, so that its callers can go elsewhere at once."""


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """End after the current step; sequences still running are lost."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first frame of a connection; the token proves that the sender is the child that was started."""

    token: str


class ProgressStarted(msgspec.Struct, frozen=True, array_like=True, tag="progress_started"):
    label: str
    total: int | None
    unit: ProgressUnit


class ProgressAdvanced(msgspec.Struct, frozen=True, array_like=True, tag="progress_advanced"):
    amount: int


class ProgressFinished(msgspec.Struct, frozen=True, array_like=True, tag="progress_finished"):
    pass


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    info: EngineInfo


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """Everything one step changed, and the engine's state after it."""

    outputs: list[RequestOutput]
    stats: StepStats


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The engine did not take a request; nothing else will be said about it."""

    request_id: str
    kind: str
    message: str
    param: str | None = None
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, request_id: str, error: InvalidRequest | Overloaded) -> Refused:
        if isinstance(error, Overloaded):
            return cls(request_id, type(error).__name__, error.message, retry_after_s=error.retry_after_s)
        return cls(request_id, "InvalidRequest", error.message, param=error.param)

    def error(self) -> InvalidRequest | Overloaded:
        if self.kind == "ShuttingDown":
            return ShuttingDown(self.message, self.retry_after_s)
        if self.kind == "Overloaded":
            return Overloaded(self.message, self.retry_after_s)
        return InvalidRequest(self.message, self.param)


class TimelineAnswer(msgspec.Struct, frozen=True, array_like=True, tag="timeline_answer"):
    """Answers ``AskTimeline``; empty for a request that is not known."""

    question_id: int
    sequences: list[SequenceTimeline]


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """How long the engine thread has been at its current step and how long that is foretold to take, 0 while idle;
    and how short memory is."""

    tick_age_s: float
    expected_s: float = 0.0
    memory: MemoryState = UNWATCHED


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The engine could not start or cannot go on; the child exits after saying so."""

    kind: str
    message: str
    field: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        if isinstance(error, ConfigError):
            return cls("ConfigError", error.message, error.field)
        if isinstance(error, HeadraceError):
            return cls("EngineDead", error.message)
        return cls("EngineDead", f"{type(error).__name__}: {error}")

    def error(self) -> ConfigError | EngineDead:
        if self.kind == "ConfigError":
            return ConfigError(self.message, self.field)
        return EngineDead(self.message)


ToEngine = Submit | Resume | Abort | Confirm | ClearCache | AskTimeline | Ping | Drain | Shutdown
FromEngine = (
    Hello
    | ProgressStarted
    | ProgressAdvanced
    | ProgressFinished
    | Ready
    | Outputs
    | Refused
    | TimelineAnswer
    | Pong
    | Failed
)


class MalformedMessage(ValueError):
    """Bytes that are not one of our messages; whoever sent them is not to be talked to any more."""


_M = TypeVar("_M")

_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_ENGINE: Final[msgspec.msgpack.Decoder[ToEngine]] = msgspec.msgpack.Decoder(ToEngine)
_FROM_ENGINE: Final[msgspec.msgpack.Decoder[FromEngine]] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _ENCODER.encode(message)


def decode_to_engine(body: bytes) -> ToEngine:
    """Decode a message for the engine. Raises ``MalformedMessage`` for anything else."""
    return _decode(_TO_ENGINE, body)


def decode_from_engine(body: bytes) -> FromEngine:
    """Decode a message of the engine. Raises ``MalformedMessage`` for anything else."""
    return _decode(_FROM_ENGINE, body)


def _decode(decoder: msgspec.msgpack.Decoder[_M], body: bytes) -> _M:
    # InvalidRequest: sampling parameters validate themselves while they are decoded.
    # RecursionError: bodies may nest arrays as deep as they are long.
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, InvalidRequest, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedMessage(f"{len(body)} bytes are not a message: {type(error).__name__}") from error
