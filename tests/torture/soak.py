"""Mixed load for a while, then silence: nothing may be left.

Streams, plain answers, several answers, clients that leave and requests that are wrong, more of them at once than run
together. Prints one table and fails if anything in it is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.server.served_process import ServedProcess, served
from tests.tiny_model import write_tiny_model
from tests.torture.figures import print_report
from tests.torture.processes import num_files, num_threads, private_bytes

NUM_CLIENTS = 48
"""One and a half times what runs at once."""

MAX_NUM_SEQS = 32
ROUND_S = 15.0
"""Load, and after it silence, in which what is held is read."""

WARM_UP_SHARE = 1 / 3
"""Of the rounds, in which caches fill and the C library's heap takes its shape."""

MOST_GROWTH_MB = 1.0
BAD_BODIES: tuple[dict[str, object], ...] = (
    {"prompt": ""},
    {"prompt": [-1]},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "n": 10**9},
)


@dataclass(frozen=True)
class Reading:
    """What a server holds at one moment, both processes together."""

    threads: int
    files: int
    private_bytes: int
    used_blocks: float
    requests: int
    tokens: float

    @classmethod
    def of(cls, server: ServedProcess, num_requests: int) -> Reading:
        used_blocks = _wait_idle(server)
        engine = server.engine_pid()
        pids = [server.process.pid, *([] if engine is None else [engine])]
        return cls(
            threads=sum(map(num_threads, pids)),
            files=sum(map(num_files, pids)),
            private_bytes=sum(map(private_bytes, pids)),
            used_blocks=used_blocks,
            requests=num_requests,
            tokens=_metric(server, "headrace_generation_tokens_total"),
        )


async def load(server: ServedProcess, seconds: float, seed: int) -> Counter[str]:
    """Have all clients ask for so long; how their requests ended."""
    ends: Counter[str] = Counter()
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=NUM_CLIENTS + 4)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        clients = [_client(http, random.Random(seed * 1000 + index), until, ends) for index in range(NUM_CLIENTS)]
        await asyncio.gather(*clients)
    return ends


async def _client(http: httpx.AsyncClient, rng: random.Random, until: float, ends: Counter[str]) -> None:
    while time.monotonic() < until:
        prompt = "the and " * rng.randrange(1, 40)
        body = {"prompt": prompt, "max_tokens": rng.randrange(1, 60), "n": rng.choice((1, 1, 3)), "ignore_eos": True}
        match rng.randrange(4):
            case 0:
                ends[str((await http.post("/completions", json=body)).status_code)] += 1
            case 1:
                ends[str((await http.post("/completions", json=rng.choice(BAD_BODIES))).status_code)] += 1
            case choice:
                ends[await _stream(http, {**body, "stream": True}, leaves=choice == 2)] += 1


async def _stream(http: httpx.AsyncClient, body: dict[str, object], *, leaves: bool) -> str:
    async with http.stream("POST", "/completions", json=body) as response:
        last = b""
        async for part in response.aiter_raw():
            last = part
            if leaves:
                return "left"
    if response.status_code != 200:
        return str(response.status_code)
    return "streamed" if last.endswith(b"data: [DONE]\n\n") else "broken stream"


def soak(server: ServedProcess, seconds: float) -> dict[str, float]:
    """Rounds of load and silence; what is held is compared from the end of the warm-up to the end."""
    ends: Counter[str] = Counter()
    readings: list[Reading] = []
    for number in range(max(3, round(seconds / ROUND_S))):
        ends += asyncio.run(load(server, ROUND_S, seed=number))
        readings.append(Reading.of(server, ends.total()))
    readings = readings[int(WARM_UP_SHARE * len(readings)) :]
    first, last = readings[0], readings[-1]
    return {
        **{f"ended {name}": count for name, count in sorted(ends.items())},
        "requests": ends.total(),
        "unexpected": sum(count for name, count in ends.items() if name.startswith("5") or name == "broken stream"),
        "most KV blocks in use when idle": max(reading.used_blocks for reading in readings),
        "more threads": last.threads - first.threads,
        "more files": last.files - first.files,
        "MB in the end": round(last.private_bytes / 1e6, 1),
        "MB per 10,000 requests": growth_mb(readings, lambda reading: reading.requests) * 10_000,
        "MB per 1,000,000 tokens": growth_mb(readings, lambda reading: reading.tokens) * 1_000_000,
    }


def growth_mb(readings: Sequence[Reading], progress: Callable[[Reading], float]) -> float:
    """The slope of private memory over progress, by least squares: one reading may be off by what was just freed."""
    slope, _ = statistics.linear_regression(
        [progress(reading) for reading in readings], [reading.private_bytes / 1e6 for reading in readings]
    )
    return slope


def _wait_idle(server: ServedProcess) -> float:
    """Blocks still in use when nothing runs, after ten seconds at most."""
    deadline = time.monotonic() + 10.0
    while True:
        used = _metric(server, 'headrace_kv_cache_blocks{state="used"}')
        if used == 0 or time.monotonic() > deadline:
            return used
        time.sleep(0.1)


def _metric(server: ServedProcess, name: str) -> float:
    text = httpx.get(f"{server.root}/metrics", timeout=30).text
    return float(text.partition(f"\n{name} ")[2].split()[0])


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder))
        with served(model, "--max-num-seqs", str(MAX_NUM_SEQS), "--kv-cache-bytes", "8MiB") as server:
            found = soak(server, arguments.minutes * 60)
    is_clean = not any(found[name] for name in ("unexpected", "most KV blocks in use when idle"))
    is_flat = found["MB per 10,000 requests"] < MOST_GROWTH_MB
    is_good = is_clean and is_flat and found["more threads"] <= 0 and found["more files"] <= 2
    return print_report(found, arguments.json, is_good=is_good)
