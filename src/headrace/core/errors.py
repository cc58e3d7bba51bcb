"""The exception tree. Every error a caller can see is one of these.

::

    HeadraceError
    |-- InvalidRequest     the caller's input is wrong; HTTP 400, ``param`` names the field
    |-- Overloaded         refused before any work was done; HTTP 429 or 503 with Retry-After
    |-- DeadlineExceeded   not finished within the request's own time; HTTP 408
    |-- RequestAborted     ended by the caller (disconnect, abort verb); no reply is owed
    |-- RequestFailed      this one request failed inside the engine; HTTP 500, others go on
    |-- EngineDead         the engine process is gone or starting; HTTP 500 / 503
    `-- ConfigError        wrong flag, file or model folder; the command line exits 2

Messages are written for the person who must act on them: what was wrong, the value, the limit, the
remedy. They never carry file-system paths of the server, addresses or tracebacks, because the server
sends them to clients; ``ConfigError`` alone may name paths, since only the operator sees it.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error raised on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(HeadraceError):
    """The request cannot be served as it is written.

    ``param`` is the body field at fault, in the caller's spelling (``"logit_bias"``), or ``None``.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Overloaded(HeadraceError):
    """Refused because of load; ``retry_after_s`` is when trying again makes sense, in seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(HeadraceError):
    """The request's own time was up before its answer was complete; it was ended and nothing is held for it."""


class RequestAborted(HeadraceError):
    """The request was ended by its caller before it finished."""


class RequestFailed(HeadraceError):
    """The engine could not finish this request (for example NaN logits); other requests go on."""


class EngineDead(HeadraceError):
    """The engine that held the request is gone; a supervisor may already be starting the next one."""


class ConfigError(HeadraceError):
    """A setting, model reference or checkpoint file is wrong; ``field`` names it where known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
