"""Mixed load for a while, then silence: nothing may be left.

Streams, plain answers, several answers, clients that leave and requests that are wrong, more of them at once than run
together. Prints one table and fails if anything in it is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
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
WARM_UP_S = 10.0
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

    @classmethod
    def of(cls, server: ServedProcess) -> Reading:
        engine = server.engine_pid()
        pids = [server.process.pid, *([] if engine is None else [engine])]
        return cls(sum(map(num_threads, pids)), sum(map(num_files, pids)), sum(map(private_bytes, pids)))


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
    """Warm up, load, fall silent, and compare. Memory is compared per 10,000 requests."""
    asyncio.run(load(server, min(WARM_UP_S, seconds), seed=0))
    _wait_idle(server)
    before = Reading.of(server)
    ends = asyncio.run(load(server, seconds, seed=1))
    left_used = _wait_idle(server)
    after, num_requests = Reading.of(server), sum(ends.values())
    return {
        **{f"ended {name}": count for name, count in sorted(ends.items())},
        "requests": num_requests,
        "unexpected": sum(count for name, count in ends.items() if name.startswith("5") or name == "broken stream"),
        "KV blocks in use": left_used,
        "more threads": after.threads - before.threads,
        "more files": after.files - before.files,
        "MB per 10,000 requests": round((after.private_bytes - before.private_bytes) / num_requests / 100, 2),
    }


def _wait_idle(server: ServedProcess) -> float:
    """Blocks still in use when nothing runs, after ten seconds at most."""
    deadline = time.monotonic() + 10.0
    while True:
        text = httpx.get(f"{server.root}/metrics", timeout=30).text
        used = float(text.partition('kv_cache_blocks{state="used"} ')[2].split()[0])
        if used == 0 or time.monotonic() > deadline:
            return used
        time.sleep(0.1)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder))
        with served(model, "--max-num-seqs", str(MAX_NUM_SEQS), "--kv-cache-bytes", "8MiB") as server:
            found = soak(server, arguments.minutes * 60)
    is_clean = not any(found[name] for name in ("unexpected", "KV blocks in use"))
    is_good = is_clean and found["more threads"] <= 0 and found["more files"] <= 2
    return print_report(found, arguments.json, is_good=is_good)
