"""Talking to a server in OpenAI's dialect: JSON out, JSON or events in, failures as our own errors.

Owns the only use of httpx here. It does not know programs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx
import msgspec

from headrace.core.errors import EngineDead, HeadraceError, InvalidRequest, Overloaded, RequestFailed

_CONNECT_TIMEOUT_S = 10.0
_MAX_CONNECTIONS = 256
_DEFAULT_RETRY_S = 1.0

JsonObject = dict[str, Any]
Headers = Mapping[str, str]


class NoSuchRoute(InvalidRequest):
    """The server does not have the route at all."""


class ApiClient:
    """One server; belongs to one event loop. An answer may take as long as it takes."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.num_spare_sequences = 0
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
        )

    async def get(self, path: str) -> JsonObject:
        """The body of a GET. Raises the errors of ``core.errors``, as all methods do."""
        try:
            response = await self._http.get(path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        _check(response.status_code, response.content, response.headers)
        self._note_room(response.headers)
        return dict(msgspec.json.decode(response.content))

    async def post(self, path: str, body: JsonObject, headers: Headers | None = None) -> JsonObject:
        """The body of the answer to a POST."""
        try:
            response = await self._http.post(path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        _check(response.status_code, response.content, response.headers)
        self._note_room(response.headers)
        return dict(msgspec.json.decode(response.content))

    async def events(
        self, path: str, body: JsonObject, headers: Headers | None = None
    ) -> AsyncGenerator[JsonObject, None]:
        """The events of a streamed answer. Closing the generator closes the connection, which ends the request."""
        try:
            async with self._http.stream("POST", path, json=body, headers=headers) as response:
                self._note_room(response.headers)
                if response.status_code != 200:
                    _check(response.status_code, await response.aread(), response.headers)
                async for line in response.aiter_lines():
                    if line.startswith("data:") and line[5:].strip() != "[DONE]":
                        event = dict(msgspec.json.decode(line[5:]))
                        if "error" in event:
                            raise RequestFailed(_message(event))
                        yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _note_room(self, headers: httpx.Headers) -> None:
        told = headers.get("x-spare-sequences", "")
        if told.isdigit():
            self.num_spare_sequences = int(told)

    async def close(self) -> None:
        await self._http.aclose()

    def _unreachable(self, error: httpx.HTTPError) -> EngineDead:
        what = str(error) or type(error).__name__
        return EngineDead(f"the server at {self.base_url} cannot be reached: {what}; is it running?")


def _check(status: int, body: bytes, headers: httpx.Headers) -> None:
    if status == 200:
        return
    try:
        message = _message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        message = body[:200].decode("utf-8", "replace")
    raise _error(status, message or f"the server answered {status}", headers)


def _error(status: int, message: str, headers: httpx.Headers) -> HeadraceError:
    if status in (404, 405) and "model" not in message:
        return NoSuchRoute(message)
    if status in (429, 503):
        retry_after = headers.get("retry-after", "")
        return Overloaded(message, float(retry_after) if retry_after.isdigit() else _DEFAULT_RETRY_S)
    return InvalidRequest(message) if status < 500 else RequestFailed(message)


def _message(body: JsonObject) -> str:
    error = body.get("error", body)
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
