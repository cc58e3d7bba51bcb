"""A server that does what a script says, at the moments it says, over a unix socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.bench.http_client import HttpClient, parse_url
from tests.bench.virtual_time import VirtualPacer


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Send:
    """An event of a stream; text is put into a completion chunk."""

    data: bytes

    @classmethod
    def text(cls, text: str, index: int = 0, finish: str | None = None) -> Send:
        return cls.json({"choices": [{"index": index, "text": text, "finish_reason": finish}]})

    @classmethod
    def usage(cls, prompt: int, completion: int, cached: int = 0) -> Send:
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        return cls.json({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}})

    @classmethod
    def json(cls, value: object) -> Send:
        return cls(b"data: " + json.dumps(value).encode() + b"\n\n")


@dataclass(frozen=True)
class Refuse:
    """The whole answer is an error with this status."""

    status: int
    message: str


@dataclass(frozen=True)
class Answer:
    """The whole answer is this JSON."""

    value: object


@dataclass(frozen=True)
class Hangup:
    """The connection is closed where it stands; behind the end of a whole answer, after that."""


DONE = Send(b"data: [DONE]\n\n")
Script = Sequence[Wait | Send | Refuse | Answer | Hangup]


@dataclass(frozen=True)
class Asked:
    """A request as it came: its number, path, body, and the moment."""

    number: int
    path: str
    body: dict[str, object]
    at_s: float


@dataclass
class ScriptedServer:
    """``script`` gives what is done for each request; ``asked`` are the requests so far."""

    script: Callable[[Asked], Script]
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while (asked := await self._read(reader)) is not None:
                if not await self._play(self.script(asked), writer):
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Asked | None:
        head = await reader.readline()
        if not head:
            return None
        length = 0
        while (line := (await reader.readline()).strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        body = await reader.readexactly(length)
        now = asyncio.get_running_loop().time()
        asked = Asked(len(self.asked), head.split()[1].decode(), json.loads(body or b"{}"), now)
        self.asked.append(asked)
        return asked

    async def _play(self, script: Script, writer: asyncio.StreamWriter) -> bool:
        """Do all of it; whether the connection may be used on."""
        has_begun = False
        for step in script:
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Hangup):
                if step is script[-1] and DONE in script:
                    writer.write(b"0\r\n\r\n")
                return False
            elif isinstance(step, Refuse):
                _write_whole(writer, step.status, {"error": {"message": step.message}})
                return True
            elif isinstance(step, Answer):
                _write_whole(writer, 200, step.value)
                return True
            else:
                if not has_begun:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    has_begun = True
                writer.write(f"{len(step.data):x}\r\n".encode() + step.data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True


def _write_whole(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def scripted(folder: Path, script: Callable[[Asked], Script]) -> AsyncIterator[tuple[ScriptedServer, HttpClient]]:
    """A server and a client of it, both on the running loop's clock."""
    server = ScriptedServer(script)
    path = str(folder / "s")
    listener = await asyncio.start_unix_server(server.serve, path)

    async def open_unix(factory: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().create_unix_connection(factory, path)

    client = HttpClient(parse_url("http://scripted"), {}, VirtualPacer(), open_unix)
    try:
        yield server, client
    finally:
        client.close()
        listener.close()


def reply(*chunks: float, prompt: int = 10, tokens: int | None = None) -> Script:
    """A good stream: a chunk of text after each of these seconds, then the finish reason, usage and the end."""
    steps: list[Wait | Send] = []
    for number, seconds in enumerate(chunks):
        steps += [Wait(seconds), Send.text(f"t{number} ")]
    count = len(chunks) if tokens is None else tokens
    return [*steps, Send.text("", finish="stop"), Send.usage(prompt, count), DONE]


@contextmanager
def over_tcp(script: Callable[[Asked], Script]) -> Iterator[tuple[ScriptedServer, str]]:
    """The same on a TCP port in a thread of its own, in real time, for whole commands; gives its URL."""
    server = ScriptedServer(script)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        listener.close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
