"""headrace beside other servers and engines: the same weights, the same work, the same machine, in turns.

Each scenario is run in rounds; in a round everybody is measured once, one after the other, so that what the
machine does meanwhile (its clock, its neighbours) hits all alike. A ratio is taken within a round; shown are
medians and, in brackets, the lowest and highest of all rounds. Above 1 means that headrace is better.

    python benchmarks/peers.py                                       headrace alone
    python benchmarks/peers.py --llama-bench PATH --llama-batched-bench PATH --llama-server PATH
    python benchmarks/peers.py --openvino PYTHON --peer "ik_llama.cpp=COMMAND" --scenarios decode prefill-512
    python benchmarks/peers.py --one-billion --scenarios decode prefill-512 --llama-bench PATH

Peers are not part of this project: build or install them elsewhere and name them here. ``--peer`` takes any
command that follows the protocol in ``contenders/commands.py``. On a shared machine give this process and its
children a priority of their own (``nice``); what others use of the CPU is measured and shown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contenders.commands import CommandPeer, openvino
from contenders.llama_cpp import LlamaServer, LlamaTools
from contenders.machine import Limits, OthersCpu, describe_machine, measure_limits
from contenders.ours import Ours
from contenders.random_model import write_one_billion
from contenders.scenario import METRICS, SCENARIOS, Contender, Kind, MeasurementError, Metric, Scenario, Setup

from headrace.checkpoint.reference import resolve_model
from headrace.core.config import DEFAULT_MODEL
from headrace.core.progress import NullProgress


@dataclass(frozen=True, slots=True)
class Sample:
    """One contender in one round of one scenario."""

    scenario: str
    round: int
    contender: str
    values: Mapping[str, float]
    others_cpu_cores: float
    load_average: float


@dataclass(slots=True)
class Report:
    """Everything measured so far; what failed as well, by contender and scenario."""

    machine: Mapping[str, str]
    versions: Mapping[str, str]
    model: str
    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    limits: dict[str, list[Limits]] = field(default_factory=dict)
    """By scenario, one per round."""
    facts: Mapping[str, float | str] = field(default_factory=dict)

    def by_round(self, scenario: Scenario, contender: str, metric: str) -> dict[int, float]:
        return {
            sample.round: sample.values[metric]
            for sample in self.samples
            if (sample.scenario, sample.contender) == (scenario.name, contender) and metric in sample.values
        }

    def others_cpu_cores(self, scenario: Scenario) -> list[float]:
        return [sample.others_cpu_cores for sample in self.samples if sample.scenario == scenario.name]


def measure(scenarios: Sequence[Scenario], contenders: Sequence[Contender], setup: Setup, rounds: int) -> Report:
    """All rounds of all scenarios; a line on standard error as each measurement ends."""
    report = Report(
        describe_machine(setup.threads),
        {contender.name: contender.version for contender in contenders},
        setup.model.name,
    )
    for scenario in scenarios:
        for round_index in range(rounds):
            measure_machine(report, scenario, setup.threads)
            for contender in contenders:
                if contender.takes_part(scenario.kind) and failure_key(contender, scenario) not in report.failures:
                    measure_once(report, scenario, contender, setup, round_index)
    return report


def measure_machine(report: Report, scenario: Scenario, threads: int) -> None:
    """What the machine can do right now: on shared hardware memory is read at half the speed at times."""
    if scenario.kind not in (Kind.DECODE, Kind.PREFILL) or "machine" in report.failures:
        return
    try:
        report.limits.setdefault(scenario.name, []).append(measure_limits(threads))
    except MeasurementError as error:
        report.failures["machine"] = str(error)


def measure_once(report: Report, scenario: Scenario, contender: Contender, setup: Setup, round_index: int) -> None:
    """A contender that fails takes no further part in the scenario, and the report says why."""
    others = OthersCpu()
    try:
        values = contender.measure(scenario, setup)
    except MeasurementError as error:
        report.failures[failure_key(contender, scenario)] = str(error)
        print(f"{scenario.name}: {contender.name} failed: {error}", file=sys.stderr)
        return
    sample = Sample(scenario.name, round_index, contender.name, values, others.cores(), os.getloadavg()[0])
    report.samples.append(sample)
    if isinstance(contender, Ours):
        report.facts = contender.facts
    shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    print(f"{scenario.name} {round_index + 1}: {contender.name}: {shown}", file=sys.stderr)


def failure_key(contender: Contender, scenario: Scenario) -> str:
    return f"{contender.name}, {scenario.name}"


# ---- printing ----------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> str:
    """``median [lowest-highest]``, with three digits that count."""
    if not values:
        return "-"
    return f"{digits(statistics.median(values))} [{digits(min(values))}-{digits(max(values))}]"


def digits(value: float) -> str:
    if value == 0.0 or not math.isfinite(value):
        return str(value)
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float], metric: Metric) -> list[float]:
    """How much better ours is, round by round."""
    pairs = [(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]
    return [a / b if metric.more_is_better else b / a for a, b in pairs]


def print_report(report: Report, scenarios: Sequence[Scenario], ours: str, peers: Sequence[str]) -> None:
    print(", ".join(f"{name} {value}" for name, value in report.machine.items()))
    for name, value in report.versions.items():
        print(f"{name}: {value}")
    facts = [
        f"{name} {value:.0f}" if isinstance(value, float) else f"{name} {value}" for name, value in report.facts.items()
    ]
    print(", ".join([f"model: {report.model}", *facts]))
    print(f"\n{'scenario':<34}{'metric':<20}{'headrace':<24}{'peer':<26}{'':<24}ratio")
    for scenario in scenarios:
        for metric in METRICS[scenario.kind]:
            print_rows(report, scenario, metric, ours, peers)
        others = report.others_cpu_cores(scenario)
        print(f"{'':<34}{'others, cores':<20}{spread(others)}")
    print_shares(report, scenarios, ours)
    for where, why in report.failures.items():
        print(f"not measured: {where}: {why}")


def print_rows(report: Report, scenario: Scenario, metric: Metric, ours: str, peers: Sequence[str]) -> None:
    own = report.by_round(scenario, ours, metric.name)
    head = f"{scenario.title:<34}{metric.label:<20}{spread(list(own.values())):<23} "
    rows = [
        f"{peer:<25} {spread(list(theirs.values())):<23} {spread(ratios(own, theirs, metric))}"
        for peer in peers
        if (theirs := report.by_round(scenario, peer, metric.name))
    ]
    for row in rows or [""]:
        print((head + row).rstrip())
        head = f"{'':<78}"


def print_shares(report: Report, scenarios: Sequence[Scenario], ours: str) -> None:
    """What the machine can do at most, and how much of it is used where one thing alone limits."""
    limits = [limit for scenario in scenarios for limit in report.limits.get(scenario.name, ())]
    if not limits:
        return
    print(
        f"\nthis machine: reads {spread([limit.read_gb_s for limit in limits])} GB/s; "
        f"int8 {spread([limit.int8_gop_s for limit in limits])} GOP/s ({limits[0].int8_instruction}); "
        f"float32 {spread([limit.float32_gflop_s for limit in limits])} GFLOP/s"
    )
    for scenario in scenarios:
        own = report.by_round(scenario, ours, "tokens_per_s")
        pairs = [
            (own[index], limit) for index, limit in enumerate(report.limits.get(scenario.name, ())) if index in own
        ]
        if pairs and scenario.kind is Kind.DECODE:
            read = [speed * bytes_per_token(report.facts, scenario) * 1e-9 for speed, _ in pairs]
            shares = [used / limit.read_gb_s for used, (_, limit) in zip(read, pairs, strict=True)]
            print(f"{scenario.title}: reads {spread(read)} GB/s, {percent(shares)} of what memory gives")
        elif pairs:
            done = [speed * 2.0 * float(report.facts["block_parameters"]) * 1e-9 for speed, _ in pairs]
            shares = [used / limit.int8_gop_s for used, (_, limit) in zip(done, pairs, strict=True)]
            print(f"{scenario.title}: {spread(done)} GOP/s in weights alone, {percent(shares)} of the int8 peak")


def percent(shares: Sequence[float]) -> str:
    return f"{statistics.median(shares):.0%} [{min(shares):.0%}-{max(shares):.0%}]"


def bytes_per_token(facts: Mapping[str, float | str], scenario: Scenario) -> float:
    """All weights, and the keys and values of the context in the middle of the run."""
    context = scenario.depth + scenario.output / 2
    return float(facts["weight_bytes"]) + context * float(facts["kv_token_bytes"])


# ---- command line ------------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure headrace beside peers, in interleaved rounds.")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="GGUF file (or what leads to one) that all are given")
    parser.add_argument("--one-billion", action="store_true", help="a 1B-class model of random weights instead")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="", help="instruction set of our in-process scenarios, e.g. avx2")
    parser.add_argument("--llama-bench", type=Path, default=None)
    parser.add_argument("--llama-batched-bench", type=Path, default=None)
    parser.add_argument("--llama-server", type=Path, default=None)
    parser.add_argument("--server-slots", type=int, nargs="*", default=[16], help="further numbers of slots to try")
    parser.add_argument("--openvino", type=Path, default=None, help="a Python that has openvino-genai")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--quick", action="store_true", help="an eighth of the work: does everything run?")
    parser.add_argument("--json", type=Path, default=None, help="also write every sample to this file")
    return parser.parse_args(argv)


def peers_of(arguments: argparse.Namespace) -> list[Contender]:
    peers: list[Contender] = []
    if arguments.llama_bench or arguments.llama_batched_bench:
        tools = (arguments.llama_bench, arguments.llama_batched_bench)
        peers += [LlamaTools(*tools, flash_attention) for flash_attention in "10"]
    if arguments.llama_server:
        peers += [LlamaServer(arguments.llama_server, slots) for slots in (None, *arguments.server_slots)]
    if arguments.openvino:
        peers.append(openvino(arguments.openvino))
    for peer in arguments.peer:
        name, _, command = peer.partition("=")
        peers.append(CommandPeer(name, command))
    return peers


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    ours = Ours(arguments.kernels)
    peers = peers_of(arguments)
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in arguments.scenarios]
    if arguments.quick:
        scenarios = [scenario.smaller() for scenario in scenarios]
    model = resolve_model(arguments.model, NullProgress())
    with tempfile.TemporaryDirectory() as folder:
        if arguments.one_billion:
            model = write_one_billion(model, Path(folder) / "random-1b-q4_0.gguf")
        setup = Setup(model, arguments.threads)
        report = measure(scenarios, [ours, *peers], setup, arguments.rounds)
    print_report(report, scenarios, ours.name, [peer.name for peer in peers])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
