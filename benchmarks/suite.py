"""Our own regressions: a short suite with ``headrace bench``, compared with the last run recorded on such a machine.

    make bench                           measure and compare
    make bench ARGS=--record             and keep the result under benchmarks/results/
    python benchmarks/suite.py --only decode chat

Every part is a command that anybody can run by hand; it is printed. A result is one small JSON file of figures with
a value for each run. Exit code 1: something is worse than in the last recorded run, by more than the threshold and
more than chance. The whole takes under ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.bench.comparison import Figure, compare
from headrace.bench.comparison_table import render_comparison, render_figures
from headrace.bench.figures import FigureFile, read_figures
from headrace.bench.peer_process import parse_command, running
from headrace.cli.machine import read_cpu

RESULTS = Path(__file__).with_name("results")
HEADRACE = (sys.executable, "-m", "headrace.cli.main")
QUIET_LAG = ("--max-client-lag", "1e6")  # client and server share the machine on purpose: what is compared is itself
THRESHOLD = 0.1


@dataclass(frozen=True)
class Part:
    """One benchmark of the suite: words after ``headrace bench``. ``figures`` are those that are kept."""

    name: str
    words: tuple[str, ...]
    figures: tuple[str, ...]
    needs_server: bool = False


SERVING = ("output throughput", "TTFT p50", "TPOT p50", "worst gap p50", "server CPU per token", "server memory")
PARTS = (
    Part(
        "decode",
        ("latency", "{model}", "--batch-size", "1", "--input-len", "128", "--output-len", "64", "--num-iters", "5"),
        ("batch latency", "CPU per output token"),
    ),
    Part(
        "batch-64",
        ("throughput", "{model}", "--num-prompts", "64", "--input-len", "128", "--output-len", "32"),
        ("output throughput", "CPU per output token", "peak memory"),
    ),
    Part(
        "serve-1",
        ("serve", "--preset", "batch-1-latency", "--num-prompts", "4", "--output-len", "64", *QUIET_LAG),
        SERVING,
        needs_server=True,
    ),
    Part(
        "serve-16",
        ("serve", "--preset", "batch-64-throughput", "--max-concurrency", "16", "--num-prompts", "32", *QUIET_LAG),
        SERVING,
        needs_server=True,
    ),
    Part(
        "chat",
        ("serve", "--preset", "multi-turn-chat", "--num-prompts", "4", "--max-concurrency", "4", *QUIET_LAG),
        SERVING,
        needs_server=True,
    ),
    Part(
        "start",
        ("startup", "{model}", "--num-iters-cold", "3", "--num-iters-warm", "3"),
        ("cold start", "warm start", "warm peak memory"),
    ),
)


def measure(parts: Sequence[Part], model: str) -> dict[str, Figure]:
    """Run the parts one after the other; figures are called ``PART: NAME``."""
    found: dict[str, Figure] = {}
    for part in parts:
        started = time.monotonic()
        words = [word.format(model=model) for word in part.words]
        if part.needs_server:
            command = parse_command(f"headrace={' '.join(HEADRACE)} serve {model} --port {{port}}")
            with running(command, 300.0) as peer:
                figures = _run([*words, "--base-url", peer.command.url])
        else:
            figures = _run(words)
        found |= {f"{part.name}: {name}": figures[name] for name in part.figures if name in figures}
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
    return found


def _run(words: Sequence[str]) -> dict[str, Figure]:
    print(f"headrace bench {' '.join(words)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [*HEADRACE, "bench", *words, "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"it failed with code {done.returncode}:\n{done.stderr[-2000:]}")
        return dict(read_figures(file)[1])


def machine_name() -> str:
    """What must be equal for two results to be compared."""
    cpu = read_cpu()
    return f"{cpu.name}, {cpu.num_cores:g} cores"


def last_recorded(folder: Path, machine: str) -> tuple[Path, FigureFile] | None:
    """The newest result of such a machine; names of files begin with their time."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        result = msgspec.json.decode(path.read_bytes(), type=FigureFile)
        if result.name.endswith(machine):
            return path, result
    return None


def record(folder: Path, result: FigureFile) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_rounded(result)), indent=1) + b"\n")
    return path


def _rounded(result: FigureFile) -> FigureFile:
    """Five digits: a file is for comparing, and for the eyes of whoever reads the change."""
    figures = {
        name: msgspec.structs.replace(figure, values=[float(f"{value:.5g}") for value in figure.values])
        for name, figure in result.figures.items()
    }
    return msgspec.structs.replace(result, figures=figures)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure headrace and compare with the last recorded run.")
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--record", action="store_true", help=f"keep the result in {RESULTS.name}/")
    parser.add_argument("--results", type=Path, default=RESULTS, help="another folder of results")
    parser.add_argument("--threshold", type=float, default=THRESHOLD)
    parser.add_argument("--json", type=Path, default=None, help="also write the result to this file")
    arguments = parser.parse_args(argv)
    machine = machine_name()
    print(f"{machine}, load average {os.getloadavg()[0]:.1f}")
    figures = measure([part for part in PARTS if part.name in arguments.only], arguments.model)
    result = FigureFile(
        name=f"suite on {machine}", date=datetime.now(UTC).isoformat(timespec="seconds"), figures=figures
    )
    before = last_recorded(arguments.results, machine)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    if arguments.record:
        print(f"recorded {record(arguments.results, result)}")
    if before is None:
        print(f"\n{render_figures(result.name, figures)}\n")
        print("no result of such a machine is recorded; --record keeps this one")
        return 0
    path, recorded = before
    comparison = compare((path.name, "now"), recorded.figures, figures, arguments.threshold)
    print(f"\n{render_comparison(comparison)}")
    return int(comparison.is_worse)


if __name__ == "__main__":
    sys.exit(main())
