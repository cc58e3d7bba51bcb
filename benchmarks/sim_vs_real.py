"""The same requests played to a real engine and to the simulator of it.

The first requests of a trace, made shorter, arrive at a rate that keeps the engine busy for ``--busy`` of the time,
once for real and once simulated, and TTFT, TPOT and end-to-end times are compared. The engine's steps are measured
as by ``headrace simulate calibrate``, before and after. All of it is done ``--rounds`` times and the round with the
median error shown, as a machine that was slow for a moment makes a queue that is long for minutes.

    python benchmarks/sim_vs_real.py                        the default model
    python benchmarks/sim_vs_real.py --model DIR --threads 1 --clock cpu --json out.json

On a machine that others use, ``--clock cpu`` counts this process's CPU time instead of the wall's: with one thread the
two are the same but for what others take. Waiting for an arrival then costs nothing: the clock jumps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine
from headrace.scheduler.build import BatchLimits
from headrace.sim.calibration import NUM_ROUNDS, Calibration
from headrace.sim.cpu_profile import CpuProfile, ProfiledStepTime
from headrace.sim.record import RequestRecord
from headrace.sim.simulator import Replica, Simulator
from headrace.sim.trace import read_trace
from headrace.sim.workload import OfferedRequest, TraceSource, offered_requests

TRACE = Path(__file__).parent / "traces" / "azure2023_conv.jsonl.gz"


class WaitingClock(Protocol):
    """A clock that can wait for a moment."""

    def now(self) -> float: ...

    def wait_until(self, moment: float) -> None: ...


class WallTime:
    """The wall's time since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def wait_until(self, moment: float) -> None:
        time.sleep(max(moment - self.now(), 0.0))


class CpuTime:
    """This process's CPU time since it was made, and the waits it was spared."""

    def __init__(self) -> None:
        self._start = time.process_time()

    def now(self) -> float:
        return time.process_time() - self._start

    def wait_until(self, moment: float) -> None:
        self._start -= max(moment - self.now(), 0.0)


CLOCKS: dict[str, Callable[[], WaitingClock]] = {"wall": WallTime, "cpu": CpuTime}


@dataclass(frozen=True)
class Comparison:
    """One measure of all requests; seconds, and how far the simulation is off."""

    measure: str
    real_s: float
    simulated_s: float
    error: float


def trace_requests(count: int, shrink: float, max_model_len: int) -> list[OfferedRequest]:
    """The trace's first requests with prompts and answers ``shrink`` times shorter, within the model's context."""
    offered = offered_requests([TraceSource(TRACE)])[:count]
    requests = []
    for request in offered:
        num_input = max(min(int(request.trace.num_input_tokens / shrink), max_model_len // 2), 4)
        num_output = max(min(int(request.trace.num_output_tokens / shrink), max_model_len // 4), 2)
        trace = replace(request.trace, num_input_tokens=num_input, num_output_tokens=num_output)
        requests.append(replace(request, trace=trace))
    return requests


def at_load(requests: Sequence[OfferedRequest], load: float) -> list[OfferedRequest]:
    return [replace(request, arrival_s=request.arrival_s / load) for request in requests]


def simulate(requests: Sequence[OfferedRequest], profile: CpuProfile) -> Simulator:
    replica = Replica(
        policy="fcfs",
        step_time=ProfiledStepTime(profile),
        known_costs=None,
        num_blocks=profile.num_kv_tokens // 16,
        request_s=profile.request_s,
        limits=BatchLimits(profile.max_num_seqs, profile.max_num_batched_tokens, profile.max_model_len),
    )
    simulator = Simulator(requests, replica)
    simulator.run()
    return simulator


def load_for(requests: Sequence[OfferedRequest], profile: CpuProfile, busy: float) -> float:
    """The load at which the simulated engine is busy for this share of the time."""
    low, high = 1e-3, 1e3
    for _ in range(12):
        middle = (low * high) ** 0.5
        simulator = simulate(at_load(requests, middle), profile)
        if simulator.busy_s / simulator.clock.now() < busy:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def play(engine: Engine, clock: WaitingClock, requests: Sequence[OfferedRequest]) -> list[RequestRecord]:
    """Hand each request over when it is due, step while there is work, and note what comes when."""
    records = [RequestRecord(request) for request in requests]
    vocab_size = engine.info.vocab_size
    pending = [_request(request, vocab_size) for request in requests]
    num_sent = 0
    while num_sent < len(records) or engine.has_work:
        if not engine.has_work:
            clock.wait_until(requests[num_sent].arrival_s)
        while num_sent < len(records) and requests[num_sent].arrival_s <= clock.now():
            engine.submit(pending[num_sent])
            num_sent += 1
        outputs = engine.step()
        now = clock.now()
        for output in outputs:
            records[int(output.request_id)].take(output, now)
    return records


def _request(offered: OfferedRequest, vocab_size: int) -> Request:
    """A random prompt and an answer of just the length the trace says."""
    rng = random.Random(offered.index)
    return Request(
        request_id=str(offered.index),
        prompt_token_ids=[rng.randrange(vocab_size) for _ in range(offered.trace.num_input_tokens)],
        sampling=SamplingParams(max_tokens=offered.trace.num_output_tokens, ignore_eos=True, temperature=0.0),
        seed=offered.index,
        arrival_time=offered.arrival_s,
    )


def compare(real: Sequence[RequestRecord], simulated: Sequence[RequestRecord]) -> list[Comparison]:
    measures: dict[str, Callable[[RequestRecord], float]] = {
        "TTFT": lambda record: record.ttft_s,
        "TPOT": lambda record: record.tpot_s,
        "E2E": lambda record: record.e2e_s,
    }
    statistics_of: dict[str, Callable[[list[float]], float]] = {
        "mean": statistics.fmean,
        "p50": statistics.median,
        "p99": lambda values: float(np.percentile(values, 99)),
    }
    rows = []
    for measure, value in measures.items():
        for name, statistic in statistics_of.items():
            ours, theirs = statistic(list(map(value, simulated))), statistic(list(map(value, real)))
            rows.append(Comparison(f"{measure} {name}", theirs, ours, ours / theirs - 1))
    return rows


def compare_once(engine: Engine, arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the engine's steps, play the requests to it, measure again, and simulate what was played."""
    clock = CLOCKS[arguments.clock]
    calibration = Calibration(engine, clock())
    for _ in range(NUM_ROUNDS):
        calibration.measure_round()
    requests = trace_requests(arguments.requests, arguments.shrink, engine.info.max_model_len)
    load = load_for(requests, calibration.profile("this machine"), arguments.busy)
    requests = at_load(requests, load)
    real = play(engine, clock(), requests)
    for _ in range(NUM_ROUNDS):  # before and after, as a machine others use is not the same for long
        calibration.measure_round()
    return compare(real, simulate(requests, calibration.profile("this machine")).records)


def medians(rounds: Sequence[Sequence[Comparison]]) -> list[Comparison]:
    """Of each measure the round whose error is the median one."""
    return [sorted(rows, key=lambda row: row.error)[len(rows) // 2] for rows in zip(*rounds, strict=True)]


def print_rows(rows: Sequence[Comparison], rounds: Sequence[Sequence[Comparison]]) -> None:
    print(f"{'':<10}{'real':>12}{'simulated':>12}{'error':>9}   of each round")
    for row, of_rounds in zip(rows, zip(*rounds, strict=True), strict=True):
        errors = " ".join(f"{each.error:+.1%}" for each in of_rounds)
        print(f"{row.measure:<10}{row.real_s:>10.4f} s{row.simulated_s:>10.4f} s{row.error:>+9.1%}   {errors}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, help="threads of the engine; default: all cores")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="times all is done; the median errors are shown")
    parser.add_argument("--shrink", type=float, default=8.0, help="divide the trace's lengths by this")
    parser.add_argument("--busy", type=float, default=0.7, help="share of the time the engine shall have work")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-num-batched-tokens", type=int, default=256)
    parser.add_argument("--kv-cache-bytes", type=int, default=1 << 28)
    parser.add_argument("--json", type=Path, metavar="FILE", dest="json_path")
    arguments = parser.parse_args(argv)
    assert len(read_trace(TRACE)) >= arguments.requests
    config = EngineConfig(
        model=arguments.model,
        threads=arguments.threads,
        scheduling_policy="fcfs",
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        kv_cache_bytes=arguments.kv_cache_bytes,
    )
    engine = build_engine(config, NullProgress())
    Calibration(engine, CLOCKS[arguments.clock]()).warm_up()
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(compare_once(engine, arguments))
        print(f"round {number + 1} of {arguments.rounds} is done", file=sys.stderr)
    engine.close()
    rows = medians(rounds)
    print(f"{arguments.requests} requests, {arguments.rounds} times, {arguments.clock} time")
    print_rows(rows, rounds)
    if arguments.json_path is not None:
        result = {
            "arguments": {**vars(arguments), "json_path": None},
            "rows": [asdict(row) for row in rows],
            "rounds": [[asdict(row) for row in each] for each in rounds],
        }
        arguments.json_path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
