"""A server that answers completions at a pace of its own: known times, no model, next to no CPU.

Whatever a client measures here should be what the flags say, so that it shows the client's errors and costs.

    python benchmarks/paced_server.py --port 8199 --ttft 0.1 --interval 0.02
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import uvloop

MODEL = "paced"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _event(value: object) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _text(text: str, finish: str | None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return _event({"id": "cmpl-0", "object": "text_completion", "created": 0, "model": MODEL, "choices": [choice]})


_TOKEN, _LAST, _DONE = _text(" token", None), _text(" token", "length"), _event(b"[DONE]")


class PacedServer:
    """The first chunk after ``ttft_s``, each of the others ``interval_s`` later; every chunk is one token."""

    def __init__(self, ttft_s: float, interval_s: float) -> None:
        self._ttft_s = ttft_s
        self._interval_s = interval_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                await self._answer(line.split()[1].decode(), await _body(reader), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if not path.endswith("completions"):
            value = {"object": "list", "data": [{"id": MODEL}]} if path.endswith("/models") else {}
            status = b"200 OK" if value or path == "/health" else b"404 Not Found"
            data = json.dumps(value).encode()
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data))
            return
        asked = json.loads(body)
        loop = asyncio.get_running_loop()
        due = loop.time() + self._ttft_s
        writer.write(_HEAD)
        count = asked["max_tokens"]
        for number in range(count):
            await asyncio.sleep(due - loop.time())
            writer.write(_TOKEN if number < count - 1 else _LAST)
            due += self._interval_s
        num_prompt = len(asked["prompt"].split()) if isinstance(asked["prompt"], str) else len(asked["prompt"])
        usage = {"prompt_tokens": num_prompt, "completion_tokens": count, "total_tokens": num_prompt + count}
        writer.write(_event({"id": "cmpl-0", "model": MODEL, "choices": [], "usage": usage}) + _DONE + b"0\r\n\r\n")
        await writer.drain()


async def _body(reader: asyncio.StreamReader) -> bytes:
    length = 0
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return await reader.readexactly(length)


async def serve(port: int, server: PacedServer) -> None:
    """Listen until cancelled; says where on stdout."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    async with listener:
        await listener.serve_forever()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Answer completions at a known pace.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft", type=float, default=0.1, help="seconds to the first chunk")
    parser.add_argument("--interval", type=float, default=0.02, help="seconds between two chunks")
    arguments = parser.parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(arguments.port, PacedServer(arguments.ttft, arguments.interval)))
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
