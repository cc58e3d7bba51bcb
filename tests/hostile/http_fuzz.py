"""Many hostile connections at once. What comes back must be sound HTTP, never a 500, and errors of one shape."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field

from tests.hostile.http_bytes import request_bytes

NUM_CONNECTIONS = 32
PATIENCE_S = 60.0
QUIET_S = 0.2
"""How long a connection may say nothing, its requests being answered, before the client leaves."""

_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_LEAK = re.compile(rb"0x[0-9a-f]{6,}|Traceback|<[\w.]+ object at|site-packages|\.py\b")
_MAY_FAIL = frozenset({501, 505})


@dataclass
class FuzzReport:
    """How so many connections were answered. ``failures`` are those that were not answered as they must be."""

    num_connections: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


async def fuzz(host: str, port: int, first: int, count: int) -> FuzzReport:
    """Send the connections ``[first, first + count)``."""
    report, seeds = FuzzReport(), iter(range(first, first + count))

    async def client() -> None:
        for seed in seeds:
            report.num_connections += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await _exchange(host, port, request_bytes(seed))
            except TimeoutError:
                report.failures.append(f"{seed}: neither answered nor closed within {PATIENCE_S:g} s")
                continue
            _check(seed, answer, report)

    await asyncio.gather(*(client() for _ in range(NUM_CONNECTIONS)))
    return report


async def _exchange(host: str, port: int, data: bytes) -> bytes:
    """Send, and read until the server closes or has long been silent after an answer."""
    reader, writer = await asyncio.open_connection(host, port)
    parts: list[bytes] = []
    try:
        writer.write(data)
        await writer.drain()
        while True:
            async with asyncio.timeout(QUIET_S if parts and _is_complete(parts) else None):
                part = await reader.read(1 << 16)
            if not part:
                break
            parts.append(part)
    except TimeoutError:
        pass
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return b"".join(parts)


def _is_complete(parts: list[bytes]) -> bool:
    """Whether the last of some answers seems to have ended."""
    return b"".join(parts[-2:])[-1:] in (b"}", b"]", b"\n")


def _check(seed: int, answer: bytes, report: FuzzReport) -> None:
    try:
        for status, head, body in _responses(answer):
            report.statuses[status] += 1
            _check_one(status, head, body)
    except AssertionError as error:
        report.failures.append(f"{seed}: {error}; {answer[:300]!r}")


def _check_one(status: int, head: bytes, body: bytes) -> None:
    assert status < 500 or status in _MAY_FAIL, f"status {status}"
    assert not _LEAK.search(body if status >= 400 else b""), "the error text leaks"
    if b"text/event-stream" in head and body:
        _check_stream(body)
    if status >= 400 and body:
        assert b"content-type: application/json" in head.lower(), "an error that is no JSON"
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def _check_stream(body: bytes) -> None:
    """Events of JSON, and at the end of those that have one the word for it, or why there is none."""
    text, is_whole = _unchunked(body)
    events = text.decode().split("\n\n")[:-1]
    data = [line.removeprefix("data: ") for event in events for line in event.split("\n") if line.startswith("data: ")]
    assert all(line.startswith(("data: ", "event: ", ":")) for event in events for line in event.split("\n"))
    told = [json.loads(line) for line in data if line != "[DONE]"]
    assert data.count("[DONE]") <= 1
    if is_whole:
        assert data[-1] == "[DONE]" or "error" in told[-1], "a stream that just stops"


def _unchunked(body: bytes) -> tuple[bytes, bool]:
    """What a chunked body holds, and whether its last chunk has come (RFC 9112, section 7.1)."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return b"".join(parts), True
        parts.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(parts), False


def _responses(answer: bytes) -> list[tuple[int, bytes, bytes]]:
    """Status, headers and body of each response, as far as they came. Raises ``AssertionError`` for what is no HTTP."""
    found = []
    while answer:
        line = _STATUS_LINE.match(answer)
        assert line, "no status line"
        head, blank, rest = answer.partition(b"\r\n\r\n")
        assert blank, "headers without an end"
        size = _body_size(head, rest)
        found.append((int(line[1]), head, rest[:size]))
        answer = rest[size:]
    return found


def _body_size(head: bytes, rest: bytes) -> int:
    if rest.startswith(b"HTTP/1.1 "):  # of a HEAD, say, which has a length and no body
        return 0
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    if length:
        return min(int(length[1]), len(rest))
    if re.search(rb"\r\ntransfer-encoding: chunked", head, re.IGNORECASE):
        end = rest.find(b"0\r\n\r\n")
        return len(rest) if end < 0 else end + 5
    return 0
