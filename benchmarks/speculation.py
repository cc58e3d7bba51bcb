"""What it is worth to begin cases of a branch before it is known which is the one, and what it costs under load.

Starts two servers, one that guesses and one that does not, and runs the program of ``examples/chaired_judge.py`` on
both in turn: alone, then many at the same time, then alone but in a client. The answers of both must be the same.
``--json FILE`` writes the figures. Run it from the root of the repository as ``python -m benchmarks.speculation``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.programs import server
from examples.chaired_judge import ESSAYS, chaired_judge

from headrace.program import RuntimeEndpoint
from headrace.program.api_client import ApiClient
from headrace.program.speculation import Speculation

Reply = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """Seconds of the same programs with guesses and without, and how many of the guesses were right."""

    guessing_s: float
    waiting_s: float
    num_guesses: int
    num_right_guesses: int

    @property
    def speedup(self) -> float:
        return self.waiting_s / self.guessing_s


async def run_programs(client: ApiClient, essays: Sequence[str], num_at_once: int) -> tuple[float, list[Reply]]:
    """Seconds of a program for each essay, ``num_at_once`` of them running at a time, and what they gave."""
    program = msgspec.to_builtins(chaired_judge.trace(), str_keys=True)
    room = asyncio.Semaphore(num_at_once)

    async def run(essay: str) -> Reply:
        async with room:
            body = {"program": program, "arguments": {"essay": essay}, "temperature": 0}
            return await client.post("/v1/programs", body)

    started = time.perf_counter()
    replies = await asyncio.gather(*(run(essay) for essay in essays))
    return time.perf_counter() - started, list(replies)


async def take_turns(urls: tuple[str, str], essays: Sequence[Sequence[str]], num_at_once: int) -> list[Turn]:
    """One turn for each list of essays, on both servers; which of them begins changes from turn to turn."""
    clients = [ApiClient(url) for url in urls]
    turns = []
    for number, batch in enumerate(essays):
        found: dict[int, tuple[float, list[Reply]]] = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found[which] = await run_programs(clients[which], batch, num_at_once)
        (guessing_s, guessed), (waiting_s, waited) = found[0], found[1]
        assert [each["text"] for each in guessed] == [each["text"] for each in waited], "the answers differ"
        usages = [each["usage"] for each in guessed]
        turns.append(
            Turn(
                guessing_s,
                waiting_s,
                sum(usage["guesses"] for usage in usages),
                sum(usage["right_guesses"] for usage in usages),
            )
        )
    for client in clients:
        await client.close()
    return turns


def take_client_turns(urls: tuple[str, str], essays: Sequence[Sequence[str]]) -> list[Turn]:
    """The same with programs that run in this process and call the servers: one guesses, the other does not."""
    turns = []
    with RuntimeEndpoint(urls[0]) as guessing, RuntimeEndpoint(urls[1]) as waiting:
        waiting.speculation = Speculation(0)
        for number, batch in enumerate(essays):
            seconds, texts, usages = {}, {}, []
            for endpoint in (guessing, waiting) if number % 2 == 0 else (waiting, guessing):
                started = time.perf_counter()
                texts[endpoint] = []
                for essay in batch:
                    state = chaired_judge.run(essay, temperature=0, backend=endpoint)
                    texts[endpoint].append(state.text())  # waits for its end
                    usages.append(state.usage)
                seconds[endpoint] = time.perf_counter() - started
            assert texts[guessing] == texts[waiting], "the answers differ"
            turns.append(
                Turn(
                    seconds[guessing],
                    seconds[waiting],
                    sum(usage.num_guesses for usage in usages),
                    sum(usage.num_right_guesses for usage in usages),
                )
            )
    return turns


def numbered(number: int, count: int) -> list[str]:
    """Essays that no server has seen before."""
    return [f"{ESSAYS[each % len(ESSAYS)]} ({number}.{each})" for each in range(count)]


def measure(model: str, port: int, num_turns: int, num_at_once: int) -> dict[str, Any]:
    with (
        server(model, port=port) as guessing,
        server(model, "--max-program-guess-tokens", "0", port=port + 1) as waiting,
    ):
        urls = (guessing, waiting)
        asyncio.run(take_turns(urls, [numbered(0, 2)], 1))  # a first time for everything
        idle = asyncio.run(take_turns(urls, [numbered(each, 4) for each in range(1, num_turns + 1)], 1))
        batches = [numbered(100 + each, 2 * num_at_once) for each in range(num_turns)]
        loaded = asyncio.run(take_turns(urls, batches, num_at_once))
        in_client = take_client_turns(urls, [numbered(200 + each, 4) for each in range(num_turns)])
    for name, turns in (("alone", idle), (f"{num_at_once} at a time", loaded), ("in a client", in_client)):
        speedups = [turn.speedup for turn in turns]
        rights = sum(turn.num_right_guesses for turn in turns)
        guesses = sum(turn.num_guesses for turn in turns)
        print(
            f"{name:14} {statistics.median(speedups):5.2f} x [{min(speedups):.2f}-{max(speedups):.2f}] as fast as "
            f"without guesses; {rights} of {guesses} were right"
        )
    rounds = {"idle": idle, "loaded": loaded, "in_client": in_client}
    return {name: [asdict(turn) for turn in turns] for name, turns in rounds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--port", type=int, default=18431)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.port, arguments.turns, arguments.at_once)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
