"""Load over HTTP: streams of completions and conversations, with the moments at which their tokens arrive.

A small HTTP/1.1 client on asyncio streams, so that the client costs as little of the machine as it can. Every
read is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from contenders.scenario import MeasurementError, Scenario, Values

TIMEOUT_S = 600.0
LIMIT_BYTES = 1 << 20
TOKEN_IDS = range(1000, 40000)
"""Where random prompts take their tokens from: ordinary ones in every vocabulary measured here."""

WORDS = (  # one token each in usual vocabularies
    "the river town school music garden letter winter market story bridge island captain paper morning village "
    "teacher silver window forest engine summer doctor mountain kitchen station police travel number picture "
    "family animal question answer history science weather ocean planet camera coffee dinner library museum "
    "street hotel ticket train orange yellow purple green simple early quiet large narrow ancient modern"
)


@dataclass(frozen=True, slots=True)
class Server:
    """A listener on 127.0.0.1 and the name it knows its model by."""

    port: int
    model: str


@dataclass(slots=True)
class Reply:
    """What came back for one request; moments on the performance counter."""

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    text: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return self.arrivals_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / max(1, self.num_output_tokens - 1)


def load_streams(server: Server, scenario: Scenario, seed: int) -> Values:
    """All streams at once, each with a prompt of its own."""
    rng = random.Random(seed)
    bodies = [
        {"prompt": rng.choices(TOKEN_IDS, k=scenario.prompt), "max_tokens": scenario.output}
        for _ in range(scenario.sequences)
    ]

    async def load() -> list[Reply]:
        return await asyncio.gather(*(_stream(server, "/v1/completions", body) for body in bodies))

    _warm_up(server, rng)
    started = time.perf_counter()
    replies = asyncio.run(load())
    wall_s = time.perf_counter() - started
    _check_lengths(replies, scenario)
    return {
        "tokens_per_s": sum(reply.num_output_tokens for reply in replies) / wall_s,
        "ttft_p50_s": statistics.median(reply.ttft_s for reply in replies),
        "tpot_p50_s": statistics.median(reply.tpot_s for reply in replies),
        "wall_s": wall_s,
    }


def load_chats(server: Server, scenario: Scenario, seed: int) -> Values:
    """All conversations at once behind one system prompt; each turn waits for the answer to the one before."""
    rng = random.Random(seed)
    system = _text(rng, scenario.prompt)
    questions = [[_text(rng, 25) for _ in range(scenario.turns)] for _ in range(scenario.sequences)]

    async def load() -> list[list[Reply]]:
        return await asyncio.gather(*(_converse(server, system, asked, scenario.output) for asked in questions))

    _warm_up(server, rng)
    started = time.perf_counter()
    conversations = asyncio.run(load())
    wall_s = time.perf_counter() - started
    _check_lengths([reply for replies in conversations for reply in replies], scenario)
    values = {
        "wall_s": wall_s,
        "first_ttft_p50_s": statistics.median(replies[0].ttft_s for replies in conversations),
        "first_prompt_tokens": float(conversations[0][0].num_prompt_tokens),
    }
    if scenario.turns > 1:
        values["later_ttft_p50_s"] = statistics.median(r.ttft_s for replies in conversations for r in replies[1:])
    return values


def _warm_up(server: Server, rng: random.Random) -> None:
    """One short request: the first one pays for what later ones find ready."""
    asyncio.run(_stream(server, "/v1/completions", {"prompt": rng.choices(TOKEN_IDS, k=16), "max_tokens": 8}))


def _text(rng: random.Random, num_tokens: int) -> str:
    """Words that come to about ``num_tokens`` tokens: each of them is one in usual vocabularies."""
    return " ".join(rng.choices(WORDS.split(), k=num_tokens))


async def _converse(server: Server, system: str, questions: list[str], num_output_tokens: int) -> list[Reply]:
    messages = [{"role": "system", "content": system}]
    replies = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "max_tokens": num_output_tokens}
        reply = await _stream(server, "/v1/chat/completions", body)
        messages.append({"role": "assistant", "content": reply.text})
        replies.append(reply)
    return replies


def _check_lengths(replies: list[Reply], scenario: Scenario) -> None:
    wrong = [reply.num_output_tokens for reply in replies if reply.num_output_tokens != scenario.output]
    if wrong:
        raise MeasurementError(f"asked for {scenario.output} tokens, got {wrong[0]}: throughputs would not compare")


async def _stream(server: Server, path: str, body: Mapping[str, object]) -> Reply:
    asked = {
        **body,
        "model": server.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
    }
    content = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    reply = Reply(time.perf_counter())
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=LIMIT_BYTES)
        try:
            writer.write(head.encode() + content)
            await writer.drain()
            await _check_status(reader)
            async for event in _events(reader):
                _take(event, reply)
        finally:
            writer.close()
    if not reply.arrivals_s:
        raise MeasurementError("a stream brought no text")
    return reply


async def _check_status(reader: asyncio.StreamReader) -> None:
    status = (await reader.readline()).split()
    is_chunked = False
    while (line := (await reader.readline()).strip()) != b"":
        is_chunked |= line.lower().replace(b" ", b"") == b"transfer-encoding:chunked"
    if len(status) < 2 or status[1] != b"200" or not is_chunked:
        answer = await reader.read(1000)
        raise MeasurementError(f"the server answered {b' '.join(status)!r}: {answer!r}")


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Data of server-sent events out of a chunked body; a line may lie across chunks."""
    pending = b""
    while (size := int((await reader.readline()).partition(b";")[0], 16)) > 0:
        pending += await reader.readexactly(size)
        await reader.readline()
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _take(event: bytes, reply: Reply) -> None:
    if event == b"[DONE]":
        return
    chunk = json.loads(event)
    if "error" in chunk:
        raise MeasurementError(f"a stream failed: {chunk['error']}")
    for choice in chunk.get("choices", ()):
        delta = choice["text"] if "text" in choice else choice["delta"].get("content")
        if delta:  # servers differ in when they send the role and the finish reason, which bring no text
            reply.arrivals_s.append(time.perf_counter())
            reply.text += delta
    if usage := chunk.get("usage"):
        reply.num_prompt_tokens = usage["prompt_tokens"]
        reply.num_output_tokens = usage["completion_tokens"]
