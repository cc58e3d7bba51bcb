"""What it is worth to begin cases of a branch before it is known which is the one, and what it costs under load.

Starts three servers, one that guesses and two that do not, and runs the program of ``examples/chaired_judge.py`` on
all in turn: alone, then several at the same time, then alone but in a client. The answers must be the same. How far
apart the two equal servers are tells what of a ratio is the machine's. ``--json FILE`` writes the figures. Run it from
the root of the repository as ``python -m benchmarks.speculation``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from benchmarks.programs import server
from examples.chaired_judge import ESSAYS, chaired_judge

from headrace.program import RuntimeEndpoint
from headrace.program.api_client import ApiClient
from headrace.program.speculation import Speculation

T = TypeVar("T")


@dataclass(frozen=True)
class Servers(Generic[T]):
    """What there is once for each server: one that guesses and two that do not."""

    guessing: T
    waiting: T
    equal: T

    def in_turn(self, number: int) -> list[T]:
        """All three; which of them begins changes from turn to turn."""
        each = [self.guessing, self.waiting, self.equal]
        return each[number % 3 :] + each[: number % 3]


@dataclass(frozen=True)
class Batch:
    """Programs that ran on one server: their seconds together, what they gave and what was guessed."""

    seconds: float
    texts: list[str]
    num_guesses: int
    num_right_guesses: int


@dataclass(frozen=True)
class Turn:
    """The same programs on each server."""

    guessing_s: float
    waiting_s: float
    equal_s: float
    num_guesses: int
    num_right_guesses: int

    @staticmethod
    def of(batches: Servers[Batch]) -> Turn:
        guessing, waiting, equal = batches.guessing, batches.waiting, batches.equal
        assert guessing.texts == waiting.texts == equal.texts, "the answers differ"
        return Turn(guessing.seconds, waiting.seconds, equal.seconds, guessing.num_guesses, guessing.num_right_guesses)

    @property
    def speedup(self) -> float:
        return self.waiting_s / self.guessing_s

    @property
    def noise(self) -> float:
        """The ratio of the two servers that do not guess."""
        return self.waiting_s / self.equal_s


async def run_programs(client: ApiClient, essays: Sequence[str], num_at_once: int) -> Batch:
    """A program on the server for each essay, ``num_at_once`` of them running at a time."""
    program = msgspec.to_builtins(chaired_judge.trace(), str_keys=True)
    room = asyncio.Semaphore(num_at_once)

    async def run(essay: str) -> dict[str, Any]:
        async with room:
            body = {"program": program, "arguments": {"essay": essay}, "temperature": 0}
            return await client.post("/v1/programs", body)

    started = time.perf_counter()
    replies = await asyncio.gather(*(run(essay) for essay in essays))
    return Batch(
        time.perf_counter() - started,
        [reply["text"] for reply in replies],
        sum(reply["usage"]["guesses"] for reply in replies),
        sum(reply["usage"]["right_guesses"] for reply in replies),
    )


def run_in_client(endpoint: RuntimeEndpoint, essays: Sequence[str]) -> Batch:
    """A program in this process for each essay, one after the other."""
    started = time.perf_counter()
    states = []
    for essay in essays:
        states.append(chaired_judge.run(essay, temperature=0, backend=endpoint))
        states[-1].text()  # waits for its end
    return Batch(
        time.perf_counter() - started,
        [state.text() for state in states],
        sum(state.usage.num_guesses for state in states),
        sum(state.usage.num_right_guesses for state in states),
    )


async def take_turns(urls: Servers[str], essays: Sequence[Sequence[str]], num_at_once: int) -> list[Turn]:
    """A turn on all servers for each list of essays."""
    clients = Servers(ApiClient(urls.guessing), ApiClient(urls.waiting), ApiClient(urls.equal))
    turns = []
    for number, batch in enumerate(essays):
        found = {client: await run_programs(client, batch, num_at_once) for client in clients.in_turn(number)}
        turns.append(Turn.of(Servers(found[clients.guessing], found[clients.waiting], found[clients.equal])))
    for client in clients.in_turn(0):
        await client.close()
    return turns


def take_client_turns(urls: Servers[str], essays: Sequence[Sequence[str]]) -> list[Turn]:
    """The same with programs that run in this process and call the servers."""
    turns = []
    with ExitStack() as entered:
        guessing, waiting, equal = (
            entered.enter_context(RuntimeEndpoint(url)) for url in (urls.guessing, urls.waiting, urls.equal)
        )
        waiting.speculation = equal.speculation = Speculation(0)
        for number, batch in enumerate(essays):
            in_turn = Servers(guessing, waiting, equal).in_turn(number)
            found = {endpoint: run_in_client(endpoint, batch) for endpoint in in_turn}
            turns.append(Turn.of(Servers(found[guessing], found[waiting], found[equal])))
    return turns


def numbered(number: int, count: int) -> list[str]:
    """Essays that no server has seen before."""
    return [f"{ESSAYS[each % len(ESSAYS)]} ({number}.{each})" for each in range(count)]


def describe(name: str, turns: Sequence[Turn]) -> str:
    speedups, noises = [turn.speedup for turn in turns], [turn.noise for turn in turns]
    rights, guesses = sum(turn.num_right_guesses for turn in turns), sum(turn.num_guesses for turn in turns)
    return (
        f"{name:14} {_spread(speedups)} as fast as without guesses, {rights} of {guesses} were right; "
        f"equal servers {_spread(noises)}"
    )


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):5.3f} x [{min(ratios):.2f}-{max(ratios):.2f}]"


def measure(model: str, port: int, num_turns: int, at_once: Sequence[int]) -> dict[str, Any]:
    """Turns by their names, which tell how many programs run at once and where."""
    off = ("--max-program-guess-tokens", "0")
    found: dict[str, list[Turn]] = {}

    def note(name: str, turns: list[Turn]) -> None:
        found[name] = turns
        print(describe(name, turns), flush=True)

    with (
        server(model, port=port) as guessing,
        server(model, *off, port=port + 1) as waiting,
        server(model, *off, port=port + 2) as equal,
    ):
        urls = Servers(guessing, waiting, equal)
        asyncio.run(take_turns(urls, [numbered(0, 2)], 1))  # a first time for everything
        note("alone", asyncio.run(take_turns(urls, [numbered(each, 4) for each in range(1, num_turns + 1)], 1)))
        for num_at_once in at_once:
            essays = [numbered(1000 * num_at_once + each, 2 * num_at_once) for each in range(num_turns)]
            note(f"{num_at_once} at a time", asyncio.run(take_turns(urls, essays, num_at_once)))
        note("in a client", take_client_turns(urls, [numbered(100 + each, 4) for each in range(num_turns)]))
    return {name: [asdict(turn) for turn in turns] for name, turns in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--port", type=int, default=18431)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--at-once", type=int, nargs="*", default=[4, 16], metavar="PROGRAMS")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.port, arguments.turns, arguments.at_once)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
