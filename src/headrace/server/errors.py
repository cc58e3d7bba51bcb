"""From an exception to the one error body every OpenAI client understands, with its status and headers.

Owns the mapping of the exception tree to HTTP and the wording of errors that only HTTP has (401, 404, 405,
413, ...). A body carries the message of an error raised on purpose and nothing else: an unexpected exception
becomes one fixed sentence, so that no path, address or traceback can reach a client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

import msgspec

from headrace.core.errors import (
    DeadlineExceeded,
    EngineDead,
    HeadraceError,
    InvalidRequest,
    Overloaded,
    ProgramError,
    RequestAborted,
    RequestFailed,
    RequestQuarantined,
    RequestShed,
    ShuttingDown,
)

CLIENT_CLOSED_REQUEST = 499
"""Status of a request whose client went away first (nginx's number); only logs ever see it."""

RESTART_RETRY_S = 2.0
"""How long a client should wait for an engine that is starting or restarting."""

_ENGINE_CODES: Final[Mapping[type[HeadraceError], str]] = {
    RequestFailed: "request_failed",
    RequestQuarantined: "request_quarantined",
    EngineDead: "engine_dead",
}

_INTERNAL_MESSAGE = "the server failed to handle this request; the operator's log has the details"


class ErrorDetail(msgspec.Struct, frozen=True):
    """What OpenAI's clients read: ``param`` is the body field at fault, ``code`` a fixed word."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """OpenAI's error body."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A complete refusal: HTTP status, body and extra headers."""

    status: int
    detail: ErrorDetail
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorResponse(self.detail))

    def all_headers(self, num_body_bytes: int) -> list[tuple[bytes, bytes]]:
        """Headers of the response that carries ``body()``, for an ASGI message."""
        headers = {"content-type": "application/json", "content-length": str(num_body_bytes), **self.headers}
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


class HttpRefusal(HeadraceError):
    """A refusal that only exists at the HTTP surface (no route, no key, body too large, draining)."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.detail.message)
        self.reply = reply


def refusal(
    status: int, message: str, code: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
) -> HttpRefusal:
    """An ``HttpRefusal`` ready to raise; its error type follows from the status."""
    return HttpRefusal(ErrorReply(status, ErrorDetail(message, _error_type(status), param, code), headers or {}))


def unknown_model(name: str, served: tuple[str, ...]) -> HttpRefusal:
    """404 for a model that is not served here; names those that are."""
    shown = name if len(name) <= 128 else name[:128] + "..."
    return refusal(
        404, f"the model {shown!r} is not served here; this server has {', '.join(served)}", "model_not_found",
        param="model",
    )  # fmt: skip


def unavailable(message: str, retry_after_s: float) -> HttpRefusal:
    """503 with Retry-After: the server is starting, restarting or shutting down."""
    return refusal(503, message, "service_unavailable", headers=retry_after(retry_after_s))


def retry_after(seconds: float) -> dict[str, str]:
    """``Retry-After`` in whole seconds, at least one, as the header's grammar wants (RFC 9110, 10.2.3)."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def status_refusal(status: int, headers: Mapping[str, str] | None = None) -> HttpRefusal:
    """Refusal for a bare HTTP status, such as the router's 404 and 405."""
    messages = {
        404: ("there is no such route; GET /openapi.json lists all of them", "not_found"),
        405: ("this route does not take that method; the Allow header names those it takes", "method_not_allowed"),
    }
    message, code = messages.get(status, (HTTPStatus(status).phrase, HTTPStatus(status).name.lower()))
    return refusal(status, message, code, headers=headers)


def error_reply(error: BaseException) -> ErrorReply:
    """The reply an exception deserves; anything not raised on purpose is a 500 that says nothing."""
    match error:
        case HttpRefusal():
            return error.reply
        case InvalidRequest():
            return ErrorReply(400, ErrorDetail(error.message, _error_type(400), error.param, "invalid_value"))
        case DeadlineExceeded():
            detail = ErrorDetail(error.message, _error_type(408), None, "deadline_exceeded")
            return ErrorReply(408, detail, {"x-should-retry": "false"})  # else OpenAI's clients send it again
        case Overloaded():
            return _overload_reply(error)
        case ProgramError():
            return _program_reply(error)
        case RequestFailed() | EngineDead():
            return ErrorReply(500, ErrorDetail(error.message, _error_type(500), None, _ENGINE_CODES[type(error)]))
        case RequestAborted():
            return ErrorReply(
                CLIENT_CLOSED_REQUEST, ErrorDetail(error.message, _error_type(499), None, "request_aborted")
            )
        case _:
            return ErrorReply(500, ErrorDetail(_INTERNAL_MESSAGE, _error_type(500), None, "internal_error"))


def _overload_reply(error: Overloaded) -> ErrorReply:
    if isinstance(error, ShuttingDown | RequestShed):
        return unavailable(error.message, error.retry_after_s).reply
    detail = ErrorDetail(error.message, _error_type(429), None, "overloaded")
    return ErrorReply(429, detail, retry_after(error.retry_after_s))


def _program_reply(error: ProgramError) -> ErrorReply:
    """The reply that its failed call deserves, in the program's words, which name the place."""
    cause = error.__cause__
    if cause is None:
        return ErrorReply(400, ErrorDetail(error.message, _error_type(400), "program", "program_error"))
    reply = error_reply(cause)
    message = error.message if isinstance(cause, HeadraceError) else f"{error.where}: {reply.detail.message}"
    return replace(reply, detail=msgspec.structs.replace(reply.detail, message=message))


def _error_type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    if status == HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    return "invalid_request_error" if status < 500 else "server_error"
