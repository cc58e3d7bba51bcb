"""A real server on 127.0.0.1 in a thread, over any engine client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec

from headrace.core.config import ServeConfig
from headrace.engine.metrics import Metrics
from headrace.server.app import app_of, create_context
from headrace.server.context import ServerContext
from headrace.server.http_server import HttpServer
from headrace.server.prompts import ChatEncoder
from tests.server.fakes import BracketChat, ByteTokenizer, ScriptedClient
from tests.server.sse import ParsedStream, check_stream

PATIENCE_S = 20.0
MODEL = "alphabet"


def eventually(condition: Callable[[], object], within_s: float = PATIENCE_S) -> float:
    """Wait until ``condition`` is true and return how many seconds it took; fail after ``within_s``."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s} s"
        time.sleep(0.005)
    return time.monotonic() - start


@dataclass
class RunningServer:
    """A server that takes requests. ``engine`` is the client it serves; ``http`` talks to it."""

    engine: Any
    context: ServerContext
    server: HttpServer
    port: int
    http: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers={name.replace("_", "-"): v for name, v in headers.items()})

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "hello", **body})

    def chat(self, content: Any = "hello", **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **body})

    def stream_completion(self, **body: Any) -> ParsedStream:
        return self._checked("/v1/completions", {"prompt": "hello", **body, "stream": True})

    def stream_chat(self, content: Any = "hello", **body: Any) -> ParsedStream:
        messages = body.pop("messages", [{"role": "user", "content": content}])
        return self._checked("/v1/chat/completions", {"messages": messages, **body, "stream": True})

    def _checked(self, path: str, body: dict[str, Any]) -> ParsedStream:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        options = body.get("stream_options", {})
        prompt = body.get("prompt", "")
        num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        return check_stream(
            response.content,
            include_usage=options.get("include_usage", False),
            continuous_usage=options.get("continuous_usage_stats", False),
            num_choices=body.get("n", 1) * num_prompts,
        )

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def send_raw(self, data: bytes) -> bytes:
        """Send bytes and read until the server closes."""
        with self.connect() as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
            return read_to_end(sock)


def read_to_end(sock: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_until(sock: socket.socket, text: bytes) -> bytes:
    """Read until ``text`` has come, and return everything."""
    data = b""
    while text not in data:
        part = sock.recv(65536)
        assert part, f"closed before {text!r}; got {data!r}"
        data += part
    return data


def post_bytes(path: str, body: bytes, extra: str = "") -> bytes:
    """A raw POST request."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n{extra}\r\n".encode() + body


@dataclass
class Backend:
    """What a server stands on. ``start`` and ``close`` run on the server's event loop."""

    client: Any
    tokenizer: Any
    chat: ChatEncoder | None
    metrics: Metrics
    start: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


async def do_nothing() -> None:
    pass


def scripted_backend(client: ScriptedClient, config: ServeConfig) -> Backend:
    tokenizer = ByteTokenizer()
    metrics = Metrics(MODEL, config.metrics_compat)
    return Backend(client, tokenizer, BracketChat(tokenizer), metrics, do_nothing, do_nothing)


@contextlib.contextmanager
def running_server(
    backend: Backend | None = None,
    *,
    keep_alive_comment_s: float = 15.0,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve ``backend`` (a fresh ``ScriptedClient`` by default) until the block ends."""
    config = ServeConfig(**{"served_model_name": (MODEL,), **settings})
    back = backend or scripted_backend(ScriptedClient(), config)
    context = create_context(back.client, back.tokenizer, back.chat, config, back.metrics)
    context = replace(context, keep_alive_comment_s=keep_alive_comment_s)
    server = HttpServer(app_of(context), config, context.drain, back.close)
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]

    async def serve() -> None:
        await back.start()
        await server.serve(sockets=[sock])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            yield RunningServer(back.client, context, server, port, http)
    finally:
        if isinstance(back.client, ScriptedClient):
            back.client.release()
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refused request, after checking that it is one in OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return dict(body["error"])


def encode(body: object) -> bytes:
    return msgspec.json.encode(body)
