"""What the load generator costs: CPU of ``headrace bench serve`` at a known rate of streamed chunks.

    python benchmarks/client_cost.py --chunks-per-s 2000

A server at a known pace streams to it from another process. Shown are the client's cores and, since the times are
known, how far its means are off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

TTFT_S = 0.1
PACE = Path(__file__).with_name("paced_server.py")


@dataclass(frozen=True)
class Cost:
    """What was asked for and what it took; latencies in milliseconds, lag at the 99th percentile."""

    wanted_chunks_per_s: float
    chunks_per_s: float
    client_cores: float
    cores_per_1000_chunks: float
    ttft_mean_ms: float
    true_ttft_ms: float
    itl_mean_ms: float
    true_itl_ms: float
    lag_p99_ms: float


@contextmanager
def paced(ttft_s: float, interval_s: float) -> Iterator[str]:
    """Run the paced server; gives its URL."""
    command = [sys.executable, str(PACE), "--ttft", str(ttft_s), "--interval", str(interval_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def measure(chunks_per_s: float, streams: int, seconds: float) -> Cost:
    """``streams`` clients in a closed loop, together at that rate."""
    interval_s = streams / chunks_per_s
    tokens = max(2, round(seconds / interval_s))
    with tempfile.TemporaryDirectory() as folder, paced(TTFT_S, interval_s) as url:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "headrace.cli.main", "bench", "serve", "--base-url", url, "--json", str(file)]
        command += ["--max-concurrency", str(streams), "--num-prompts", str(streams), "--num-runs", "1"]
        command += ["--input-len", "32", "--output-len", str(tokens), "--max-client-lag", "1e6"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run = json.loads(file.read_text())["runs"][0]
    achieved = run["num_chunks"] / run["duration_s"]
    client = run["client"]
    return Cost(
        wanted_chunks_per_s=chunks_per_s,
        chunks_per_s=achieved,
        client_cores=client["cores"],
        cores_per_1000_chunks=1000 * client["cores"] / achieved,
        ttft_mean_ms=1e3 * run["ttft"]["mean"],
        true_ttft_ms=1e3 * TTFT_S,
        itl_mean_ms=1e3 * run["itl"]["mean"],
        true_itl_ms=1e3 * interval_s,
        lag_p99_ms=1e3 * max(client["send_lag_p99_s"], client["loop_lag_p99_s"]),
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU of the load generator at a known rate of chunks.")
    parser.add_argument("--chunks-per-s", type=float, nargs="+", default=[500, 2000])
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    arguments = parser.parse_args(argv)
    costs = [measure(rate, arguments.streams, arguments.seconds) for rate in arguments.chunks_per_s]
    heads = ("chunks/s", "client cores", "per 1000", "TTFT ms", "true", "gap ms", "true", "lag p99")
    print("".join(f"{head:>14}" for head in heads))
    for cost in costs:
        figures = (
            *(f"{cost.chunks_per_s:.0f}", f"{cost.client_cores:.3f}", f"{cost.cores_per_1000_chunks:.3f}"),
            *(f"{cost.ttft_mean_ms:.1f}", f"{cost.true_ttft_ms:.1f}", f"{cost.itl_mean_ms:.2f}"),
            *(f"{cost.true_itl_ms:.2f}", f"{cost.lag_p99_ms:.1f}"),
        )
        print("".join(f"{figure:>14}" for figure in figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
