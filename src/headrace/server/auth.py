"""API keys: who may use the server.

Owns the comparison and the list of routes that need no key. Everything else is refused without one, known
route or not, whatever the method: the check looks at the path exactly as the router will see it and knows
nothing of routes. Keys are compared as digests in constant time, so neither their length nor their first
characters can be learnt from timing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from headrace.server.access_log import App, Receive, Scope, Send
from headrace.server.errors import HttpRefusal, refusal

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/ping", "/metrics", "/metrics/"})
"""Probes and scrapes carry no key: they show whether the server works and how busy it is, and no text.
``/metrics`` is open as in vLLM; who must hide it puts the server behind a proxy."""

_BEARER = b"bearer "
_SAME_SITE = frozenset({b"same-origin", b"none"})
"""Values of ``Sec-Fetch-Site`` for what no other site has brought about (W3C, Fetch Metadata Request Headers)."""


class KeyRing:
    """The keys of a server, replaced as a whole when the operator changes them. An empty ring opens to everyone."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @property
    def is_empty(self) -> bool:
        return not self._digests

    def has(self, key: bytes) -> bool:
        """Whether ``key`` is one of these; takes as long for a wrong key as for a right one."""
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0  # all of them, hit or not


class ApiKeyCheck:
    """ASGI middleware: 401 unless the request carries one of the keys, or one of the operator's.

    Without keys everything passes.
    """

    def __init__(self, app: App, keys: KeyRing, operators: KeyRing) -> None:
        self._app = app
        self._keys = keys
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._keys.is_empty and scope["path"] not in OPEN_PATHS:
            self._check(scope["headers"])
        await self._app(scope, receive, send)

    def _check(self, headers: list[tuple[bytes, bytes]]) -> None:
        key = presented_key(headers)
        if key is None:
            raise _unauthorized("this server needs an API key; send it as 'Authorization: Bearer KEY'")
        if not (self._keys.has(key) or self._operators.has(key)):
            raise _unauthorized("the API key is not one of this server's")


def check_operator(keys: KeyRing, operators: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse all but the operator: who holds an admin key, or anybody where no keys are asked for at all.

    Anybody, that is, but a web page: a link to this server in it costs its author nothing, and a browser that follows
    it stands where the server trusts everyone.
    """
    headers = list(headers)
    if not _SAME_SITE.issuperset(value for name, value in headers if name == b"sec-fetch-site"):
        raise refusal(403, "this route is for the operator, not for a web page; call it from elsewhere", "forbidden")
    if operators.is_empty and keys.is_empty:
        return
    if operators.is_empty:
        raise refusal(
            403, "this route is for the operator; let the server be started with --admin-key KEY", "forbidden"
        )
    if not is_operator(operators, headers):
        raise refusal(403, "this route is for the operator; send an admin key of this server", "forbidden")


def is_operator(operators: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request carries one of the operator's keys."""
    return operators.has(presented_key(headers) or b"")


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The one key a request carries; ``None`` if there is none, or several that disagree."""
    keys = set()
    for name, value in headers:
        if name == b"authorization":
            keys.add(value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b"")
        elif name == b"x-api-key":
            keys.add(value.strip())
    return keys.pop() or None if len(keys) == 1 else None


def _unauthorized(message: str) -> HttpRefusal:
    return refusal(401, message, "invalid_api_key", headers={"www-authenticate": "Bearer"})
