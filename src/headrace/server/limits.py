"""What an HTTP request may weigh and where it may come from, checked before anything is read or allocated.

Owns the limits on headers and bodies, the ``Host`` allow-list that keeps a web page from reaching a local
server by DNS rebinding, and the content type that keeps a web form from doing so. It does not know routes.
No CORS header is ever sent: no web page of another origin can read an answer.
"""

from __future__ import annotations

from headrace.core.config import ServeConfig
from headrace.core.errors import RequestAborted
from headrace.server.access_log import App, Receive, Scope, Send
from headrace.server.errors import HttpRefusal, refusal

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
ANY_HOST = "*"


class HeaderLimits:
    """ASGI middleware: 431 for header blocks that are too long or have too many fields."""

    def __init__(self, app: App, config: ServeConfig) -> None:
        self._app = app
        self._max_count = config.max_header_count
        self._max_bytes = config.max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check(scope["headers"])
        await self._app(scope, receive, send)

    def _check(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > self._max_count:
            raise headers_too_large(f"the request has {len(headers)} headers but at most {self._max_count} are allowed")
        num_bytes = sum(len(name) + len(value) + 4 for name, value in headers)  # ": " and CRLF
        if num_bytes > self._max_bytes:
            raise headers_too_large(
                f"the request's headers have {num_bytes} bytes but at most {self._max_bytes} are allowed"
            )


class HostCheck:
    """ASGI middleware: 400 unless the ``Host`` header names this server."""

    def __init__(self, app: App, config: ServeConfig) -> None:
        self._app = app
        self._allowed = {_normal_host(host) for host in (*LOCAL_HOSTS, config.host, *config.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ANY_HOST not in self._allowed:
            self._check(scope["headers"])
        await self._app(scope, receive, send)

    def _check(self, headers: list[tuple[bytes, bytes]]) -> None:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or _host_name(hosts[0]) not in self._allowed:
            raise refusal(
                400,
                "the Host header does not name this server; the operator can allow more names with --allowed-hosts",
                "invalid_host",
            )


class BodyLimits:
    """ASGI middleware: 415 and 413 by what the headers say about the body, before any of it is read."""

    def __init__(self, app: App, config: ServeConfig) -> None:
        self._app = app
        self._max_bytes = config.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check(scope["method"], dict(scope["headers"]))
        await self._app(scope, receive, send)

    def _check(self, method: str, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        has_body = length != b"0" or b"transfer-encoding" in headers
        if method in ("GET", "HEAD") or not has_body:
            return
        if length.isdigit() and (len(length) > 18 or int(length) > self._max_bytes):
            raise body_too_large(self._max_bytes)
        media_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if media_type != b"application/json":
            raise refusal(415, "the body must be JSON; send content-type: application/json", "unsupported_media_type")
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise refusal(
                415, "the body must not be compressed; send it without content-encoding", "unsupported_encoding"
            )


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Read a request's body. Raises a 413 as soon as it is too long, ``RequestAborted`` if it breaks off."""
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted("the client closed the connection while sending the body")
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise body_too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def headers_too_large(message: str) -> HttpRefusal:
    return refusal(431, f"{message}; send fewer or shorter ones", "headers_too_large", headers={"connection": "close"})


def body_too_large(max_bytes: int) -> HttpRefusal:
    return refusal(
        413,
        f"the body has more than {max_bytes} bytes; shorten it, or let the operator raise --max-body-bytes",
        "body_too_large",
        headers={"connection": "close"},
    )


def _host_name(value: bytes) -> str:
    """The host of a ``Host`` header, without its port; empty for anything odd."""
    try:
        text = value.decode("ascii").lower()
    except UnicodeDecodeError:
        return ""
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        return name if bracket and _is_port_suffix(rest) else ""
    name, colon, port = text.partition(":")
    return name if _is_port_suffix(colon + port) else ""


def _is_port_suffix(text: str) -> bool:
    return not text or (text[0] == ":" and (not text[1:] or (text[1:].isdigit() and len(text) <= 6)))


def _normal_host(host: str) -> str:
    return host.strip("[]").lower()
