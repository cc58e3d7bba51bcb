"""What becomes of promises when more is asked than a server can do: capacity first, then a multiple of it for minutes.

    python benchmarks/overload.py --json FILE

Starts ``headrace serve``, finds by bisection the rate at which 95 of 100 requests of a class keep its targets, then
offers that rate and ``--factor`` times it, for ``--duration`` seconds each. Shown for both: goodput over offered
requests and per second, how many were refused at once, the 95th percentile of what was served, and how ``/health``
answered meanwhile. Client and server share this machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.cli.main import main as headrace
from headrace.core.service_level import STANDARD_CLASSES

HEALTH_INTERVAL_S = 0.05
ATTAINMENT = 0.95


@dataclass(frozen=True)
class Offered:
    """One rate and what came of it; seconds, and requests a second."""

    rate: float
    num_offered: int
    num_served: int
    outcomes: dict[str, int]
    goodput: float
    good_per_s: float
    ttft_p95_s: float
    tpot_p95_s: float
    worst_gap_p95_s: float
    health_p99_s: float


@contextmanager
def started(words: list[str]) -> Iterator[str]:
    """Serve on a free port; gives the URL once the server is ready."""
    command = [sys.executable, "-m", "headrace.cli.main", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            url = ""
            for line in server.stdout:
                if line.strip().startswith("URL"):
                    url = line.split()[-1].removesuffix("/v1")
                if line.startswith("ready in"):
                    break
            else:
                raise SystemExit("the server did not start")
            yield url
        finally:
            server.terminate()


class HealthProbe:
    """Asks ``/health`` from a thread of its own, twenty times a second, and keeps how long each answer took."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/health"
        self._is_over = threading.Event()
        self._seconds: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> HealthProbe:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def p99_s(self) -> float:
        return sorted(self._seconds)[int(0.99 * len(self._seconds))]

    def _run(self) -> None:
        while not self._is_over.wait(HEALTH_INTERVAL_S):
            started_at = time.perf_counter()
            with urllib.request.urlopen(self._url) as response:
                response.read()
            self._seconds.append(time.perf_counter() - started_at)


def bench(verb: str, words: list[str]) -> dict[str, Any]:
    """The report of ``headrace bench VERB``, run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = headrace(["bench", verb, *words, "--json", str(path)])
        if code:
            raise SystemExit(f"headrace bench {verb} ended with {code}:\n{errors.getvalue()[-2000:]}")
        report: dict[str, Any] = json.loads(path.read_text())
    return report


def offer(url: str, load: list[str], rate: float, duration_s: float) -> Offered:
    words = [*load, "--request-rate", f"{rate}", "--num-prompts", f"{int(rate * duration_s)}", "--num-runs", "1"]
    with HealthProbe(url) as health:
        report = bench("serve", words)
    (run,) = report["runs"]
    return Offered(
        rate=rate,
        num_offered=run["num_offered"],
        num_served=run["num_ok"],
        outcomes=run["outcomes"],
        goodput=run["num_good"] / run["num_offered"],
        good_per_s=run["num_good"] / run["duration_s"],
        ttft_p95_s=run["ttft"]["percentiles"]["p95"],
        tpot_p95_s=run["tpot"]["percentiles"]["p95"],
        worst_gap_p95_s=run["worst_gap"]["percentiles"]["p95"],
        health_p99_s=health.p99_s(),
    )


def measure(arguments: argparse.Namespace) -> list[Offered]:
    level = STANDARD_CLASSES[arguments.service_class]
    slo = [f"ttft:{1000 * level.ttft_s:g}", f"tpot:{1000 * level.tpot_s:g}"]
    with started([arguments.model, *arguments.server_flag]) as url:
        load = ["--base-url", url, "--slo", *slo, "--ignore-eos", "--max-client-lag", "1e6"]
        load += ["--input-len", arguments.input_len, "--output-len", arguments.output_len]
        load += ["--extra-body", json.dumps({"service_tier": arguments.service_class})]
        rate = arguments.rate or capacity(load)
        return [offer(url, load, factor * rate, arguments.duration) for factor in (1.0, arguments.factor)]


def capacity(load: list[str]) -> float:
    """The rate at which enough requests just keep their targets."""
    rate = bench("capacity", [*load, "--attainment", f"{ATTAINMENT}", "--min-rate", "1"])["knee_rate"]
    if not isinstance(rate, float):
        raise SystemExit("even one request a second misses its targets on this machine")
    return rate


def print_table(offers: list[Offered]) -> None:
    print("  rate  offered  served  goodput  good/s  TTFT p95  TPOT p95  gap p95  /health p99")
    for o in offers:
        print(
            f"{o.rate:6.2f}  {o.num_offered:7}  {o.num_served:6}  {o.goodput:6.1%}  {o.good_per_s:6.2f}  "
            f"{o.ttft_p95_s:6.2f} s  {1000 * o.tpot_p95_s:5.1f} ms  {o.worst_gap_p95_s:5.2f} s  "
            f"{1000 * o.health_p99_s:8.1f} ms"
        )
    print(f"good requests a second, of those at capacity: {offers[1].good_per_s / offers[0].good_per_s:.1%}")
    print(f"outcomes beyond capacity: {offers[1].outcomes}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure goodput at capacity and beyond it.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--service-class", default="standard", choices=["interactive", "standard", "batch"])
    parser.add_argument("--rate", type=float, help="requests a second at capacity, if it is known; default: found")
    parser.add_argument("--factor", type=float, default=1.5)
    parser.add_argument("--duration", type=float, default=180.0, help="seconds each rate is offered for")
    parser.add_argument("--input-len", default="lognormal:128:0.6")
    parser.add_argument("--output-len", default="lognormal:64:0.5")
    parser.add_argument("--server-flag", action="append", default=[], help="passed to headrace serve")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    offers = measure(arguments)
    print_table(offers)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(o) for o in offers], indent=1) + "\n")


if __name__ == "__main__":
    main()
