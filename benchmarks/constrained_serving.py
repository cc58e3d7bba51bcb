"""Constrained output on a real server, each target beside what was reached.

``answers``: schemas of a sample at 16 streams, temperature 1; every answer that finished is judged by ``jsonschema``.
``speed``: tokens a second of constrained and of free answers, alone and 64 at a time, and what steps waited for masks.
``jumps``: compact objects with and without forced tokens, greedy, whose texts must be equal.

    python benchmarks/constrained_serving.py answers --data FILE_OR_FOLDER
    python benchmarks/constrained_serving.py speed --json speed.json
    python benchmarks/constrained_serving.py jumps

A sample has one object a line with a ``schema``; without ``--data`` the environment's HEADRACE_TEST_SCHEMAS names it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from headrace.bench.peer_process import PeerCommand, free_port, running

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 170.0
NUM_STREAMS = 16
NUM_ROUNDS = 3

RECORDS: dict[str, Any] = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "score": {"type": "number", "minimum": 0, "maximum": 100},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            "note": {"type": "string", "maxLength": 60},
        },
        "required": ["name", "score", "tags", "note"],
        "additionalProperties": False,
    },
}
"""What is never complete within the tokens that the speed is measured with."""

COMPACT: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    for properties in (
        {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
        {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        {
            "title": {"type": "string", "maxLength": 30},
            "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
            "in_print": {"type": "boolean"},
            "language": {"enum": ["english", "french", "german"]},
        },
        {
            "order_id": {"type": "integer", "minimum": 1, "maximum": 99999},
            "status": {"enum": ["pending", "shipped", "delivered"]},
            "total": {"type": "number", "minimum": 0, "maximum": 1000},
            "express": {"type": "boolean"},
        },
    )
)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    target: str
    reached: str
    is_met: bool


@dataclass(frozen=True)
class Answer:
    """``text`` is empty where the server refused."""

    status: int
    text: str = ""
    finish_reason: str = ""
    num_tokens: int = 0


class Server:
    """Asks one server for completions, and for its metrics."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def complete(self, prompt: str, **fields: Any) -> Answer:
        response = await self._http.post("/v1/completions", json={"prompt": prompt, **fields})
        if response.status_code != 200:
            return Answer(response.status_code, response.json()["error"]["message"])
        body = response.json()
        choice = body["choices"][0]
        return Answer(200, choice["text"], choice["finish_reason"], body["usage"]["completion_tokens"])

    async def metric(self, name: str) -> float:
        lines = (await self._http.get("/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def on_server(work: Callable[[Server], Awaitable[Any]], model: str, *flags: str) -> Any:
    """Run ``work`` on a server of its own."""

    async def run() -> Any:
        limits = httpx.Limits(max_connections=256)
        async with httpx.AsyncClient(base_url=command.url, timeout=ANSWER_TIMEOUT_S, limits=limits) as http:
            return await work(Server(http))

    port = free_port()
    words = (sys.executable, "-m", "headrace.cli.main", "serve", model, "--port", str(port), *flags)
    command = PeerCommand("headrace", words, port)
    with running(command, START_TIMEOUT_S):
        return asyncio.run(run())


async def at_once(asks: Sequence[Callable[[], Awaitable[Answer]]], num_streams: int) -> list[Answer]:
    """Answers in the order of ``asks``, so many at a time."""
    gate = asyncio.Semaphore(num_streams)

    async def one(ask: Callable[[], Awaitable[Answer]]) -> Answer:
        async with gate:
            return await ask()

    return await asyncio.gather(*(one(ask) for ask in asks))


# -- answers ---------------------------------------------------------------------------------------------


def read_schemas(path: Path, count: int) -> list[tuple[str, Any]]:
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"), reverse=True)
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    groups = [json.loads(line) for line in lines[:count]]
    return [(group["id"], group["schema"]) for group in groups]


def answers(arguments: argparse.Namespace) -> list[Row]:
    schemas = read_schemas(arguments.data, arguments.count)

    async def work(server: Server) -> list[Answer]:
        return await at_once(
            [_ask(server, schema, arguments.max_tokens, i) for i, (_, schema) in enumerate(schemas)], NUM_STREAMS
        )

    started = time.perf_counter()
    found: list[Answer] = on_server(work, arguments.model)
    spent_s = time.perf_counter() - started
    outcomes: Counter[str] = Counter()
    for (name, schema), answer in zip(schemas, found, strict=True):
        outcome = _judged(schema, answer)
        outcomes[outcome] += 1
        if outcome in ("wrong", "failed"):
            print(f"  {name}: {outcome}: {answer.text[:300]}")
    num_wrong = outcomes["wrong"] + outcomes["failed"]
    detail = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    return [
        Row(f"{len(found)} schemas at {NUM_STREAMS} streams", "0 wrong", f"{detail} ({spent_s:.0f} s)", num_wrong == 0)
    ]


def _ask(server: Server, schema: Any, max_tokens: int, seed: int) -> Callable[[], Awaitable[Answer]]:
    prompt = f"An example of the JSON that this schema describes: {json.dumps(schema)[:400]}\nExample:\n"
    form = {"json": json.dumps(schema)}
    return lambda: server.complete(prompt, temperature=1.0, seed=seed, max_tokens=max_tokens, structured_outputs=form)


def _judged(schema: Any, answer: Answer) -> str:
    if answer.status == 400:
        return "refused"
    if answer.status != 200:
        return "failed"
    if answer.finish_reason != "stop":
        return "cut off"
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return "wrong"
    except re.error:  # a pattern that Python's regexes cannot say
        return "not judged"
    return "right"


# -- speed -----------------------------------------------------------------------------------------------


def speed(arguments: argparse.Namespace) -> list[Row]:
    """Rounds alternate, so that what the machine does meanwhile falls on both."""

    async def work(server: Server) -> list[Row]:
        rows = []
        for batch, num_tokens in ((1, 128), (64, 96)):
            free, held, waited = await _compare(server, batch, num_tokens)
            share = statistics.median(held) / statistics.median(free)
            rates = f"{statistics.median(held):.0f} of {statistics.median(free):.0f} tokens/s"
            rows.append(
                Row(f"constrained over free, batch {batch}", ">= 97 %", f"{share:.1%} ({rates})", share >= 0.97)
            )
            rows.append(Row(f"steps waited for masks, batch {batch}", "<= 2 %", f"{waited:.2%}", waited <= 0.02))
        masks, mass = (
            await server.metric("headrace_token_masks_total"),
            await server.metric("headrace_masked_probability_mass_total"),
        )
        rows.append(Row("masked probability mass, mean", "", f"{mass / max(masks, 1):.1%}", True))
        return rows

    flags = ("--max-forced-tokens", "0", "--max-num-seqs", "64", "--max-model-len", "512")
    found: list[Row] = on_server(work, arguments.model, *flags)
    return found


async def _compare(server: Server, batch: int, num_tokens: int) -> tuple[list[float], list[float], float]:
    """Tokens a second of free and of constrained rounds, and the share of the latter's step time spent waiting."""
    free, held = [], []
    waited_s = step_s = 0.0
    form = {"structured_outputs": {"json": json.dumps(RECORDS)}}
    await _rate(server, batch, 8, form)  # compiles, and warms both
    for _ in range(NUM_ROUNDS):
        free.append(await _rate(server, batch, num_tokens, {}))
        before = await _mask_and_step_s(server)
        held.append(await _rate(server, batch, num_tokens, form))
        after = await _mask_and_step_s(server)
        waited_s, step_s = waited_s + after[0] - before[0], step_s + after[1] - before[1]
    return free, held, waited_s / step_s


async def _mask_and_step_s(server: Server) -> tuple[float, float]:
    return (
        await server.metric("headrace_token_mask_wait_seconds_total"),
        await server.metric("headrace_step_duration_seconds_sum"),
    )


async def _rate(server: Server, batch: int, num_tokens: int, form: dict[str, Any]) -> float:
    fields = {"max_tokens": num_tokens, "temperature": 1.0, "ignore_eos": True, **form}
    started = time.perf_counter()
    found = await asyncio.gather(
        *(server.complete("Records of people, as JSON:\n", seed=seed, **fields) for seed in range(batch))
    )
    spent_s = time.perf_counter() - started
    assert all(answer.num_tokens == num_tokens for answer in found), found[0]
    return sum(answer.num_tokens for answer in found) / spent_s


# -- jumps -----------------------------------------------------------------------------------------------


def jumps(arguments: argparse.Namespace) -> list[Row]:
    async def work(server: Server) -> dict[int, tuple[float, list[str]]]:
        for ask in _compact(server):
            await ask()
        return {batch: await _compact_rate(server, batch) for batch in (1, 4, 16)}

    without: dict[int, tuple[float, list[str]]] = on_server(work, arguments.model, "--max-forced-tokens", "0")
    found: dict[int, tuple[float, list[str]]] = on_server(work, arguments.model)
    rows = []
    for batch, (rate, texts) in found.items():
        gain = rate / without[batch][0]
        rows.append(Row(f"jump-forward, batch {batch}", ">= 1.15x", f"{gain:.2f}x ({rate:.0f} tokens/s)", gain >= 1.15))
        is_equal = texts == without[batch][1]
        rows.append(Row(f"greedy texts equal, batch {batch}", "all", f"{is_equal}", is_equal))
    return rows


def _compact(server: Server) -> list[Callable[[], Awaitable[Answer]]]:
    return [_compact_ask(server, schema, number) for schema in COMPACT for number in range(4)]


def _compact_ask(server: Server, schema: Any, number: int) -> Callable[[], Awaitable[Answer]]:
    form = {"json": json.dumps(schema), "whitespace_pattern": ""}
    prompt = f"Object number {number}, as JSON:\n"
    return lambda: server.complete(prompt, temperature=0.0, max_tokens=120, structured_outputs=form)


async def _compact_rate(server: Server, batch: int) -> tuple[float, list[str]]:
    rates, texts = [], []
    for _ in range(NUM_ROUNDS):
        started = time.perf_counter()
        found = await at_once(_compact(server), batch)
        rates.append(sum(answer.num_tokens for answer in found) / (time.perf_counter() - started))
        texts = [answer.text for answer in found]
    return statistics.median(rates), texts


def render(rows: Sequence[Row]) -> str:
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("what", "target")]
    return "\n".join(
        f"{row.what:<{widths[0]}}  {row.target:<{widths[1]}}  {row.reached}{'' if row.is_met else '  missed'}"
        for row in rows
    )


PARTS = {"answers": answers, "speed": speed, "jumps": jumps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path, default=os.environ.get("HEADRACE_TEST_SCHEMAS"), help="for answers")
    parser.add_argument("--count", type=int, default=500, help="schemas, for answers")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer, for answers")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the table as JSON")
    arguments = parser.parse_args()
    if arguments.part == "answers" and arguments.data is None:
        parser.error("answers needs --data, a file or folder of schemas")
    rows = PARTS[arguments.part](arguments)
    print(render(rows))
    if arguments.json:
        report = {"machine": platform.machine(), "part": arguments.part, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
