"""``headrace why``: ask a running server where the time of a request went."""

from __future__ import annotations

import http.client
import os
import textwrap
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import msgspec

from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError, RequestFailed

_DESCRIPTION = """Say where the time of a request went, and what or whom it waited for. ID is the x-request-id the
client sent or got, or the id of the reply. The server remembers what runs and the latest requests that finished."""

_TIMEOUT_S = 60.0
_MAX_REPLY_BYTES = 16 << 20


def main(argv: Sequence[str]) -> int:
    """Print the answer. Raises ``ConfigError`` for a URL that is none, ``RequestFailed`` for a server's refusal."""
    parser = Parser("why", _DESCRIPTION, "ID [flags]")
    parser.add_argument("id", metavar="ID", help="the request to explain")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--api-key", default=None, help="key to send; default: HEADRACE_API_KEY")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    arguments = parser.parse(argv)
    reply = fetch_timeline(arguments.url, arguments.id, arguments.api_key or os.environ.get("HEADRACE_API_KEY"))
    if arguments.json:
        write_json(reply, arguments.json)
    if arguments.json != "-":
        print("\n".join(_wrapped(sentence) for sentence in _summary(reply)))
    return 0


def fetch_timeline(url: str, request_id: str, api_key: str | None) -> dict[str, object]:
    """The server's reply on one request."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url is {url!r} but must be like http://127.0.0.1:8000")
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    path = parts.path.rstrip("/").removesuffix("/v1")
    try:
        connection.request("GET", f"{path}/v1/requests/{quote(request_id, safe='')}/timeline", headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_REPLY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"no answer from {url} ({error}); --url says where the server listens") from error
    finally:
        connection.close()
    return _decoded(response.status, body)


def _decoded(status: int, body: bytes) -> dict[str, object]:
    try:
        reply: dict[str, object] = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise RequestFailed(f"the server's answer (status {status}) is not JSON; is it headrace?") from error
    if status != 200:
        error_body = reply.get("error")
        message = error_body.get("message") if isinstance(error_body, dict) else None
        raise RequestFailed(str(message or f"the server answered with status {status}"))
    return reply


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, 100, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _summary(reply: dict[str, object]) -> list[str]:
    summary = reply.get("summary")
    return [str(sentence) for sentence in summary] if isinstance(summary, list) else []
