"""How true the simulator is, and what the scheduler is worth in it.

    python benchmarks/simulator.py logs                  against requests that vLLM served on two GPUs
    python benchmarks/simulator.py goodput               llama-70b on eight H100, policies and loads
    python benchmarks/simulator.py goodput --json out.json --picture out.svg

The logs are of 300 requests to Llama-3.1-8B in bfloat16. Of the four numbers that make a step's time, two follow
from the GPU (reading the weights once, and 1.2 times the reading of keys and values) and two are fitted, the cost of
a token and that of a step. The goodput mix is an interactive trace at several rates beside long batch prompts at one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from headrace.scheduler.build import BatchLimits
from headrace.scheduler.cost_model import StepCosts
from headrace.sim.devices import DEVICE_KINDS
from headrace.sim.model_shapes import find_model
from headrace.sim.picture import goodput_picture
from headrace.sim.record import RequestRecord
from headrace.sim.report import SimulationReport
from headrace.sim.scenario import Scenario, parse_hardware, parse_policy
from headrace.sim.simulator import Replica, Simulator
from headrace.sim.step_time import LinearStepTime
from headrace.sim.trace import Measured
from headrace.sim.workload import TraceSource, offered_requests

TRACES = Path(__file__).parent / "traces"
CONTEXT_FACTOR = 1.2
STEP_OVERHEAD_S = 3e-3
POLICIES = ("fcfs:2048", "fcfs:512", "slo")


@dataclass(frozen=True)
class LoggedServer:
    """A GPU with the limits its log was made with, and the fitted seconds of one token."""

    gpu: str
    token_s: float
    num_blocks: int
    max_num_seqs: int

    def costs(self) -> StepCosts:
        model, device = find_model("llama-8b"), DEVICE_KINDS[self.gpu]
        return StepCosts.roofline(
            model.weight_bytes / device.bytes_per_s,
            self.token_s,
            context_s=CONTEXT_FACTOR * model.kv_bytes_per_token / device.bytes_per_s,
            pair_s=0.0,
            overhead_s=STEP_OVERHEAD_S,
        )


SERVERS = (LoggedServer("rtxpro6000", 55e-6, 35_000, 128), LoggedServer("rtx4090", 95e-6, 2588, 256))


@dataclass(frozen=True)
class Comparison:
    """One measure of one server: means in seconds and how far the simulated one is off."""

    gpu: str
    measure: str
    measured_s: float
    simulated_s: float
    error: float


def replay_log(server: LoggedServer) -> list[RequestRecord]:
    """Simulate the log's requests with vLLM's policy; each record holds what was measured, too."""
    source = TraceSource(TRACES / f"vllm_llama-8b_{server.gpu}.jsonl.gz", "default")
    replica = Replica(
        policy="vllm",
        step_time=LinearStepTime(server.costs()),
        known_costs=None,
        num_blocks=server.num_blocks,
        limits=BatchLimits(server.max_num_seqs, 2048, 8192),
    )
    simulator = Simulator(offered_requests([source]), replica)
    simulator.run()
    return simulator.records


def compare(server: LoggedServer) -> list[Comparison]:
    records = replay_log(server)
    logs: list[tuple[Measured, int]] = []
    for record in records:
        assert record.offered.trace.measured is not None
        logs.append((record.offered.trace.measured, record.offered.trace.num_output_tokens))
    measures: dict[str, tuple[Callable[[RequestRecord], float], Callable[[Measured, int], float]]] = {
        "TTFT": (lambda record: record.ttft_s, lambda log, count: log.ttft_s),
        "TPOT": (lambda record: record.tpot_s, lambda log, count: (log.e2e_s - log.ttft_s) / (count - 1)),
        "E2E": (lambda record: record.e2e_s, lambda log, count: log.e2e_s),
    }
    rows = []
    for measure, (simulated, measured) in measures.items():
        real = statistics.mean(measured(log, count) for log, count in logs)
        ours = statistics.mean(map(simulated, records))
        rows.append(Comparison(server.gpu, measure, real, ours, ours / real - 1))
    return rows


def run_logs() -> list[Comparison]:
    print(f"{'GPU':<12}{'mean':<6}{'measured':>12}{'simulated':>12}{'error':>9}")
    rows = [row for server in SERVERS for row in compare(server)]
    for row in rows:
        print(f"{row.gpu:<12}{row.measure:<6}{row.measured_s:>10.4f} s{row.simulated_s:>10.4f} s{row.error:>+9.2%}")
    return rows


def goodput_scenario(duration_s: float, seed: int) -> Scenario:
    """Azure's conversations beside a steady trickle of long prompts, on the planner's llama-70b over eight H100."""
    return Scenario(
        sources=[
            TraceSource(TRACES / "azure2023_conv.jsonl.gz"),
            TraceSource(TRACES / "mooncake_conv_tenth.jsonl.gz", "batch", max_input_tokens=32_768, is_steady=True),
        ],
        hardware=parse_hardware("llama-70b", "h100x8"),
        duration_s=duration_s,
        seed=seed,
    )


def run_goodput(policies: Sequence[str], loads: Sequence[float], scenario: Scenario) -> list[SimulationReport]:
    header = ("policy", "load", "interactive", "TTFT p99", "TPOT p99", "rejected", "batch", "wall")
    print("{:<11}{:>5}{:>13}{:>10}{:>11}{:>10}{:>8}{:>8}".format(*header))
    reports = []
    for policy in policies:
        for load in loads:
            started = time.perf_counter()
            report = scenario.run(parse_policy(policy), load)
            groups = {group.name: group for group in report.classes}
            urgent, batch = groups["interactive"], groups["batch"]
            print(
                f"{policy:<11}{load:>5g}{urgent.goodput:>13.1%}{urgent.ttft_s.p99:>8.2f} s"
                f"{urgent.tpot_s.p99 * 1e3:>8.1f} ms{urgent.rejected / urgent.offered:>10.1%}{batch.goodput:>8.1%}"
                f"{time.perf_counter() - started:>6.1f} s",
                flush=True,
            )
            reports.append(report)
    return reports


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("logs", "goodput"))
    parser.add_argument("--policy", nargs="+", default=POLICIES)
    parser.add_argument("--loads", nargs="+", type=float, default=(0.5, 1.0, 1.5, 2.0))
    parser.add_argument("--duration", type=float, default=600.0, metavar="S", help="seconds in which requests come")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    parser.add_argument("--json", type=Path, metavar="FILE", dest="json_path")
    arguments = parser.parse_args(argv)
    if arguments.what == "logs":
        result: list[object] = [asdict(row) for row in run_logs()]
    else:
        scenario = goodput_scenario(arguments.duration, arguments.seed)
        reports = run_goodput(arguments.policy, arguments.loads, scenario)
        result = msgspec.to_builtins(reports)
        if arguments.picture is not None:
            arguments.picture.write_text(goodput_picture(reports), encoding="utf-8")
    if arguments.json_path is not None:
        arguments.json_path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
