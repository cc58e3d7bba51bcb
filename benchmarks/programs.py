"""Programs of many calls against the same calls made by hand: time, and how much of their prompts came from the cache.

Starts one server for each way (so that no way finds another's cache) and runs, on it:

- each program of ``examples/programs.py`` as a program, as calls one after the other, and as calls made at the same
  time by a client whose server shares no prefixes;
- a batch of 64 few-shot prompts with the prefix cache and without;
- 400 decisions about one input as one request and as chat calls.

Prints ratios; ``--json FILE`` writes the figures. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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
from headrace.program.api_client import ApiClient

START_TIMEOUT_S = 300.0
NUM_BATCHED = 64
NUM_DECISIONS = 400
NUM_CHAT_CALLS = 20  # of the decisions' 400; the rest are extrapolated
DECISION_INPUT = " ".join(f"On day {day} the parcel was in town {day % 7} and the box was dry." for day in range(27))


@dataclass(frozen=True)
class ProgramFigures:
    """Seconds of the three ways, and the shares of prompt tokens found in the cache."""

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

    def __init__(self, client: ApiClient, model: str) -> None:
        self._client = client
        self._model = model

    async def chat(self, messages: Messages, **sampling: Any) -> str:
        body = {"messages": messages, **self._common(sampling)}
        if messages[-1]["role"] == "assistant":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        reply = await self._client.post("/v1/chat/completions", body)
        return str(reply["choices"][0]["message"]["content"])

    async def complete(self, text: str, **sampling: Any) -> str:
        reply = await self._client.post("/v1/completions", {"prompt": text, **self._common(sampling)})
        return str(reply["choices"][0]["text"])

    async def choose(self, prompt: Messages | str, choices: Sequence[str]) -> str:
        held = {"structured_outputs": {"choice": list(choices)}, "max_tokens": 8}
        return await (self.complete(prompt, **held) if isinstance(prompt, str) else self.chat(prompt, **held))

    def _common(self, sampling: dict[str, Any]) -> dict[str, Any]:
        return {"model": self._model, "temperature": 0, **sampling}

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


def programs_as_programs(url: str, names: Sequence[str]) -> dict[str, tuple[float, float, int]]:
    """Seconds, hit rate and prompt tokens of each program."""
    found = {}
    with RuntimeEndpoint(url) as endpoint:
        endpoint.wait(endpoint.backend._client.post("/v1/completions", {"prompt": "warm", "max_tokens": 4}))
        for name in names:
            started = time.perf_counter()
            usage = PROGRAMS[name].run(**ARGUMENTS[name], temperature=0, backend=endpoint).usage
            elapsed_s = time.perf_counter() - started
            found[name] = (elapsed_s, usage.num_cached_tokens / usage.num_prompt_tokens, usage.num_prompt_tokens)
    return found


def programs_by_hand(url: str, hand: type[ApiHand], names: Sequence[str]) -> dict[str, float]:
    """Seconds of each program as calls by hand."""

    async def run() -> dict[str, float]:
        client = ApiClient(url)
        caller = hand(client, "smollm2")
        await caller.complete("warm", max_tokens=4)
        found = {}
        for name in names:
            started = time.perf_counter()
            await BY_HAND[name](caller, **ARGUMENTS[name])  # type: ignore[operator]
            found[name] = time.perf_counter() - started
        await client.close()
        return found

    return asyncio.run(run())


def batch_seconds(url: str) -> float:
    """Seconds of a batch of few-shot prompts."""
    reviews = [{"review": f"number {number} was what I hoped for"} for number in range(NUM_BATCHED)]
    with RuntimeEndpoint(url) as endpoint:
        endpoint.wait(endpoint.backend._client.post("/v1/completions", {"prompt": "warm", "max_tokens": 4}))
        started = time.perf_counter()
        list(PROGRAMS["few_shot"].run_batch(reviews, temperature=0, backend=endpoint))
        return time.perf_counter() - started


def decision_seconds(url: str) -> tuple[float, float]:
    """Seconds of 400 decisions in one request, and of 400 chat calls, of which some are made."""

    async def run() -> tuple[float, float]:
        client = ApiClient(url)
        texts = [f"Was the parcel in town {number % 7} on day {number // 7}?" for number in range(NUM_DECISIONS)]
        questions = [{"type": "predicate", "instructions": text} for text in texts]
        await client.post("/v1/completions", {"prompt": "warm", "max_tokens": 4})
        started = time.perf_counter()
        await client.post("/v1/decisions", {"input": DECISION_INPUT, "questions": questions})
        decided_s = time.perf_counter() - started
        started = time.perf_counter()
        for text in texts[:NUM_CHAT_CALLS]:
            content = f"{DECISION_INPUT}\n\n{text}"
            messages = [{"role": "user", "content": content}]
            await client.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 64})
        chatted_s = (time.perf_counter() - started) * NUM_DECISIONS / NUM_CHAT_CALLS
        await client.close()
        return decided_s, chatted_s

    return asyncio.run(run())


def measure(model: str, names: Sequence[str], port: int) -> dict[str, Any]:
    flags = [model, "--served-model-name", "smollm2"]
    with server(*flags, port=port) as url:
        as_programs = programs_as_programs(url, names)
    with server(*flags, port=port) as url:
        sequential = programs_by_hand(url, ApiHand, names)
    with server(*flags, "--no-enable-prefix-caching", port=port) as url:
        unshared = programs_by_hand(url, ConcurrentHand, names)
        batch_off_s = batch_seconds(url)
    with server(*flags, port=port) as url:
        batch_on_s = batch_seconds(url)
        decided_s, chatted_s = decision_seconds(url)
    figures = [ProgramFigures(name, *_split(as_programs[name], sequential[name], unshared[name])) for name in names]
    for each in figures:
        print(each.line)
    print(f"few-shot batch of {NUM_BATCHED}: {batch_off_s / batch_on_s:.2f} x faster than without the cache")
    print(f"{NUM_DECISIONS} decisions: {decided_s:.2f} s, {chatted_s / decided_s:.1f} x faster than chat calls")
    return {
        "programs": [asdict(each) for each in figures],
        "batch": {"size": NUM_BATCHED, "cache_on_s": batch_on_s, "cache_off_s": batch_off_s},
        "decisions": {"count": NUM_DECISIONS, "decisions_s": decided_s, "chat_calls_s": chatted_s},
    }


def _split(program: tuple[float, float, int], sequential_s: float, unshared_s: float) -> tuple[Any, ...]:
    program_s, hit_rate, num_prompt_tokens = program
    return program_s, sequential_s, unshared_s, hit_rate, num_prompt_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--port", type=int, default=18411)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.programs, arguments.port)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
