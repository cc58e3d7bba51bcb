"""Records of requests and reports of runs as a test wants them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from headrace.bench.load_generator import RunTimes
from headrace.bench.record import Outcome, RequestRecord
from headrace.bench.recorder import RunRecorder
from headrace.bench.report import LoadInfo, Machine, ServerInfo, ServingReport
from headrace.bench.slo import parse_slos
from headrace.bench.summary import RunSummary, summarize
from headrace.bench.workload import WorkloadInfo


def record(
    intended_s: float = 0.0,
    arrivals_s: Sequence[float] = (0.5, 0.6),
    num_output_tokens: int | None = None,
    group: str = "",
    outcome: Outcome = Outcome.OK,
    turn: int = 0,
) -> RequestRecord:
    """A request whose chunks came at these moments and that ended with the last."""
    made = RequestRecord(0, 0, turn, group, intended_s, intended_s, intended_s)
    made.arrivals_s = array("d", arrivals_s)
    made.gaps_s = array("d", [b - a for a, b in pairwise(arrivals_s)])
    made.end_s = arrivals_s[-1]
    made.outcome = outcome
    made.num_input_tokens = 100
    made.num_output_tokens = len(arrivals_s) if num_output_tokens is None else num_output_tokens
    return made


def run_of(step_s: float) -> RunSummary:
    """The summary of 40 requests that came ``step_s`` apart."""
    slos = parse_slos(["ttft:500"])
    recorder = RunRecorder(slos)
    for number in range(40):
        at_s = number * step_s
        recorder.add(
            record(at_s, [at_s + 0.3 + 0.01 * number + 0.05 * chunk for chunk in range(9)], group=f"g{number % 2}")
        )
    return summarize(recorder, RunTimes(40 * step_s, 1.0, (0.0,)), slos)


def report_of(name: str, step_s: float) -> ServingReport:
    """Two runs of a server that took requests ``step_s`` apart, and a little more."""
    return ServingReport(
        headrace_version="1.0",
        date="2026-01-01T00:00:00+00:00",
        server=ServerInfo(name=name, url="http://127.0.0.1:8000", model="tiny <b>", start_s=1.5, install_bytes=1 << 20),
        endpoint="chat",
        workload=WorkloadInfo(name="random", seed=0, num_sessions=40, num_requests=40, lengths="words"),
        load=LoadInfo(kind="open", request_rate=10.0),
        machine=Machine(cpu="a CPU with a rather long name", num_cores=2, memory_bytes=1, load_average=0.5, python="3"),
        runs=[run_of(step_s), run_of(step_s * 1.1)],
    )
