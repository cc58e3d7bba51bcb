"""Start and stop a server under load, again and again, in every way there is; nothing may be left behind."""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.server.served_process import ServedProcess, served
from tests.tiny_model import write_tiny_model
from tests.torture.figures import print_report
from tests.torture.processes import alive, descendants, leftovers

WAYS = {
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGTERM twice": (signal.SIGTERM, signal.SIGTERM),
    "SIGKILL": (signal.SIGKILL,),
}
EXIT_CODES = {"SIGKILL": -signal.SIGKILL}
DRAIN_TIMEOUT_S = 0.5
GONE_WITHIN_S = 5.0
"""After the drain timeout, or after the server's own end for the processes below it."""

PATIENCE_S = 60.0
NUM_STREAMS = 4


@dataclass
class CycleReport:
    """What was found; all lists are empty when nothing is wrong. Times in seconds."""

    num_cycles: int = 0
    longest_stop_s: dict[str, float] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    exit_codes: list[str] = field(default_factory=list)

    @property
    def num_slow(self) -> int:
        """Ways of stopping that once took longer than they may."""
        return sum(seconds > DRAIN_TIMEOUT_S + GONE_WITHIN_S for seconds in self.longest_stop_s.values())

    @property
    def is_clean(self) -> bool:
        return not (self.orphans or self.leftovers or self.exit_codes)


def run_cycles(num_cycles: int, folder: Path, seed: int = 0) -> CycleReport:
    """Run so many cycles over the model in ``folder``, the ways of stopping in turn."""
    rng, report, ways = random.Random(seed), CycleReport(), list(WAYS)
    before = leftovers()
    for number in range(num_cycles):
        _cycle(ways[number % len(ways)], folder, rng, report)
        report.num_cycles += 1
    report.leftovers += sorted(leftovers() - before)
    return report


def _cycle(way: str, folder: Path, rng: random.Random, report: CycleReport) -> None:
    with served(folder, "--drain-timeout", str(DRAIN_TIMEOUT_S)) as server:
        streams = [threading.Thread(target=_stream, args=(server,)) for _ in range(NUM_STREAMS)]
        for stream in streams:
            stream.start()
        time.sleep(rng.random() * 0.3)  # into whatever moment of their lives
        below = descendants(server.process.pid)
        started = time.monotonic()
        for number in WAYS[way]:
            server.process.send_signal(number)
        code = _exit_code(server, way)
        took_s = time.monotonic() - started
        gone_by = started + took_s + GONE_WITHIN_S
        while alive(below) and time.monotonic() < gone_by:
            time.sleep(0.01)
        report.orphans += [f"{way}: process {pid}" for pid in alive(below)]
        report.longest_stop_s[way] = round(max(report.longest_stop_s.get(way, 0.0), took_s), 2)
        if code != EXIT_CODES.get(way, 0):
            report.exit_codes.append(f"{way}: {code}")
        for stream in streams:
            stream.join()


def _exit_code(server: ServedProcess, way: str) -> int:
    """Wait for the end; a server that does not come to it is asked where it is."""
    try:
        return server.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        server.process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        server.process.kill()
        assert server.process.stderr is not None
        raise AssertionError(f"{way}: no end within {PATIENCE_S} s:\n{server.process.stderr.read()}") from None


def _stream(server: ServedProcess) -> None:
    asked = {"prompt": ["x"] * 8, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with (
        suppress(httpx.HTTPError),
        httpx.stream("POST", f"{server.url}/completions", json=asked, timeout=30) as response,
    ):
        for _ in response.iter_raw():
            pass


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is deaf to it, children too
    parser = argparse.ArgumentParser(prog="torture cycles", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = run_cycles(arguments.count, write_tiny_model(Path(folder)))
    figures = {
        "cycles": found.num_cycles,
        **{f"longest stop by {way}, s": seconds for way, seconds in found.longest_stop_s.items()},
        "orphans": len(found.orphans),
        "sockets and shared memory left": len(found.leftovers),
        "wrong exit codes": len(found.exit_codes),
        "ways that took too long": found.num_slow,
    }
    print("\n".join([*found.orphans, *found.leftovers, *found.exit_codes]))
    return print_report(figures, arguments.json, is_good=found.is_clean and found.num_slow == 0)
