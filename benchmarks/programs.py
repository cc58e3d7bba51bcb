"""Programs of many calls against the same calls made by hand: time, and how much of their prompts came from the cache.

Starts a server with the prefix cache and one without, and runs on them, with an empty cache each time:

- each program of ``examples/programs.py`` as a program, as calls one after the other, and as calls made at the same
  time of the server that shares no prefixes: the median of some rounds, in which the three take turns;
- a batch of 64 few-shot prompts with the prefix cache and without;
- 400 decisions about one input as one request and as chat calls, answered in words and as JSON: the middle one of
  some rounds.

Prints ratios; ``--json FILE`` writes the figures. Takes a minute on two cores. Run it from the root of the repository
as ``python -m benchmarks.programs``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.programs import ARGUMENTS, PROGRAMS
from examples.programs_by_hand import BY_HAND, Messages

from headrace.program import RuntimeEndpoint
from headrace.program.api_client import ApiClient, JsonObject
from headrace.program.run import RunUsage
from headrace.program.server_backend import ServerBackend

START_TIMEOUT_S = 300.0
NUM_BATCHED = 64
NUM_DECISIONS = 400
NUM_CHAT_CALLS = 20  # of the decisions' 400; the rest are extrapolated
ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "confidence": {"type": "number", "minimum": 0, "maximum": 1}},
    "required": ["answer", "confidence"],
    "additionalProperties": False,
}
"""What a decision tells, asked of a chat call."""

CHAT_CALLS: dict[str, JsonObject] = {
    "words": {"max_tokens": 64},
    "JSON": {
        "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER_SCHEMA}},
    },
}
DECISION_INPUT = " ".join(f"On day {day} the parcel was in town {day % 7} and the box was dry." for day in range(21))


@dataclass(frozen=True)
class ProgramFigures:
    """Seconds of the three ways, and the share of the program's prompt tokens that was found in the cache."""

    name: str
    program_s: float
    sequential_s: float
    unshared_s: float
    hit_rate: float
    num_prompt_tokens: int

    @property
    def line(self) -> str:
        return (
            f"{self.name:20} program {self.program_s:6.2f} s   in order {self.sequential_s / self.program_s:5.2f} x"
            f"   at once, unshared {self.unshared_s / self.program_s:5.2f} x   hits {self.hit_rate:6.1%}"
        )


class ApiHand:
    """Makes the calls by hand over HTTP; choices by a generated answer held to them, the cheapest way there is."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def chat(self, messages: Messages, **sampling: Any) -> str:
        body = {"messages": messages, "temperature": 0, **sampling}
        if messages[-1]["role"] == "assistant":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        reply = await self._client.post("/v1/chat/completions", body)
        return str(reply["choices"][0]["message"]["content"])

    async def complete(self, text: str, **sampling: Any) -> str:
        reply = await self._client.post("/v1/completions", {"prompt": text, "temperature": 0, **sampling})
        return str(reply["choices"][0]["text"])

    async def choose(self, prompt: Messages | str, choices: Sequence[str]) -> str:
        held = {"structured_outputs": {"choice": list(choices)}, "max_tokens": 8}
        return await (self.complete(prompt, **held) if isinstance(prompt, str) else self.chat(prompt, **held))

    async def all(self, calls: Sequence[Awaitable[Any]]) -> list[Any]:
        return [await call for call in calls]


class ConcurrentHand(ApiHand):
    """Makes calls that do not depend on each other at the same time."""

    async def all(self, calls: Sequence[Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*calls))


@contextmanager
def server(*flags: str, port: int) -> Iterator[str]:
    """A server of its own, started and stopped; gives its URL."""
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _is_ready(url):
            assert process.poll() is None, "the server ended while starting"
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health") as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


class Ways:
    """The ways to run a program, on a server with the prefix cache and one without."""

    def __init__(self, shared: RuntimeEndpoint, unshared: RuntimeEndpoint) -> None:
        self._shared = shared
        self._unshared = unshared

    def as_program(self, name: str) -> tuple[float, RunUsage]:
        """Seconds, and what its calls cost."""
        empty_cache(self._shared)
        started = time.perf_counter()
        usage = PROGRAMS[name].run(**ARGUMENTS[name], temperature=0, backend=self._shared).usage
        return time.perf_counter() - started, usage

    def in_order(self, name: str) -> float:
        """Seconds of the calls by hand, one after the other."""
        empty_cache(self._shared)
        return _by_hand(self._shared, ApiHand, name)

    def unshared(self, name: str) -> float:
        """Seconds of the calls by hand, at the same time and without shared prefixes."""
        return _by_hand(self._unshared, ConcurrentHand, name)

    def figures(self, name: str, num_rounds: int) -> ProgramFigures:
        """Medians of some rounds, in which the ways take turns."""
        runs, in_order_s, unshared_s = [], [], []
        for _ in range(num_rounds):
            runs.append(self.as_program(name))
            in_order_s.append(self.in_order(name))
            unshared_s.append(self.unshared(name))
        usage = runs[-1][1]
        return ProgramFigures(
            name,
            statistics.median(seconds for seconds, _ in runs),
            statistics.median(in_order_s),
            statistics.median(unshared_s),
            usage.num_cached_tokens / usage.num_prompt_tokens,
            usage.num_prompt_tokens,
        )


def empty_cache(endpoint: RuntimeEndpoint) -> None:
    """Forget all prefixes, and have something computed after it."""
    client = client_of(endpoint)
    urllib.request.urlopen(urllib.request.Request(f"{client.base_url}/flush_cache", b"", method="POST")).close()
    endpoint.wait(client.post("/v1/completions", {"prompt": "warm", "max_tokens": 4}))


def client_of(endpoint: RuntimeEndpoint) -> ApiClient:
    backend = endpoint.backend
    assert isinstance(backend, ServerBackend)
    return backend.client


def _by_hand(endpoint: RuntimeEndpoint, hand: type[ApiHand], name: str) -> float:
    caller = hand(client_of(endpoint))

    async def run() -> float:
        started = time.perf_counter()
        await BY_HAND[name](caller, **ARGUMENTS[name])  # type: ignore[operator]
        return time.perf_counter() - started

    return endpoint.wait(run())


def batch_seconds(endpoint: RuntimeEndpoint, size: int) -> float:
    """Seconds of a batch of few-shot prompts."""
    empty_cache(endpoint)
    reviews = [{"review": f"number {number} was what I hoped for"} for number in range(size)]
    started = time.perf_counter()
    list(PROGRAMS["few_shot"].run_batch(reviews, temperature=0, backend=endpoint))
    return time.perf_counter() - started


@dataclass(frozen=True)
class ChatFigures:
    """Seconds of chat calls instead of decisions, ``num_called`` of which were made, and their answers' mean length."""

    kind: str
    seconds: float
    num_called: int
    num_answer_tokens: float


@dataclass(frozen=True)
class DecisionFigures:
    """Seconds of decisions in one request, and of as many chat calls."""

    count: int
    decisions_s: float
    chat_calls: list[ChatFigures]

    @property
    def lines(self) -> list[str]:
        return [
            f"{self.count} decisions: {self.decisions_s:.2f} s, {chat.seconds / self.decisions_s:.1f} x faster "
            f"than chat calls answered in {chat.kind}, with {chat.num_answer_tokens:.0f} tokens"
            for chat in self.chat_calls
        ]


def decision_figures(endpoint: RuntimeEndpoint, text: str, count: int, num_called: int) -> DecisionFigures:
    """Yes-or-no questions about ``text``: as one request, and as chat calls."""
    empty_cache(endpoint)
    asked = [f"Was the parcel in town {number % 7} on day {number // 7}?" for number in range(count)]
    questions = [{"type": "predicate", "instructions": each} for each in asked]

    async def chat(kind: str) -> ChatFigures:
        client = client_of(endpoint)
        started, num_tokens = time.perf_counter(), 0
        for each in asked[:num_called]:
            messages = [{"role": "user", "content": f"{text}\n\n{each}"}]
            body = {"messages": messages, "temperature": 0, **CHAT_CALLS[kind]}
            num_tokens += (await client.post("/v1/chat/completions", body))["usage"]["completion_tokens"]
        seconds = (time.perf_counter() - started) * count / num_called
        return ChatFigures(kind, seconds, num_called, num_tokens / num_called)

    async def run() -> DecisionFigures:
        started = time.perf_counter()
        await client_of(endpoint).post("/v1/decisions", {"input": text, "questions": questions})
        decided_s = time.perf_counter() - started
        return DecisionFigures(count, decided_s, [await chat(kind) for kind in CHAT_CALLS])

    return endpoint.wait(run())


def measure(model: str, names: Sequence[str], port: int, num_rounds: int) -> dict[str, Any]:
    with (
        server(model, port=port) as shared_url,
        server(model, "--no-enable-prefix-caching", port=port + 1) as unshared_url,
        RuntimeEndpoint(shared_url) as shared,
        RuntimeEndpoint(unshared_url) as unshared,
    ):
        ways = Ways(shared, unshared)
        ways.figures(names[0], 1)  # a first time for everything
        figures = []
        for name in names:
            figures.append(ways.figures(name, num_rounds))
            print(figures[-1].line, flush=True)
        batch_on_s, batch_off_s = batch_seconds(shared, NUM_BATCHED), batch_seconds(unshared, NUM_BATCHED)
        print(f"few-shot batch of {NUM_BATCHED}: {batch_off_s / batch_on_s:.2f} x faster than without the cache")
        rounds = [
            decision_figures(shared, DECISION_INPUT, NUM_DECISIONS, NUM_CHAT_CALLS) for _ in range(max(3, num_rounds))
        ]
        decisions = sorted(rounds, key=lambda each: each.chat_calls[0].seconds / each.decisions_s)[len(rounds) // 2]
        print("\n".join(decisions.lines))
    return {
        "programs": [asdict(each) for each in figures],
        "batch": {"size": NUM_BATCHED, "cache_on_s": batch_on_s, "cache_off_s": batch_off_s},
        "decisions": asdict(decisions),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=18411)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.programs, arguments.port, arguments.rounds)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
