"""How well the cost model foretells the steps of a real model.

Builds the engine, lets it measure its made-up steps as an idle server does, and then runs random requests of
changing number and length. Before each step the model says how long it will take; the table shows by how much
it is wrong, as medians and 90th percentiles of relative errors, for steps that only decode, only compute
prompts, or both.

With ``--cpu-time`` a step's duration is the CPU time of one computing thread, foretold by a model that learns
from that: what a machine of its own would show, measured on one with other work.

    python benchmarks/step_costs.py                      the default model, 400 steps
    python benchmarks/step_costs.py --model PATH --steps 1000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine
from headrace.scheduler.cost_model import StepCostModel, StepCosts, StepFeatures
from headrace.scheduler.policy import SchedulerListener
from headrace.scheduler.waits import Waits

MAX_PROMPT_TOKENS = 600
MAX_OUTPUT_TOKENS = 64
NUM_STEPS_PER_LOAD = 40


@dataclass(frozen=True)
class Step:
    """One step as foretold and as it was; seconds."""

    features: StepFeatures
    foretold_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return abs(self.foretold_s - self.measured_s) / self.measured_s

    @property
    def kind(self) -> str:
        if self.features.num_new_tokens == 0:
            return "decode"
        return "both" if self.features.num_decodes else "prompt"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    kind: str
    num_steps: int
    median_step_ms: float
    median_error: float
    p90_error: float


class Foreteller(SchedulerListener):
    """Notes what the engine's cost model says of a step when it is planned, and what became of it."""

    def __init__(self) -> None:
        self.costs = StepCostModel()
        self.steps: list[Step] = []
        self._foretold_s = 0.0

    def on_planned(self, plan: StepPlan, waits: Waits, now: float) -> None:
        self._foretold_s = self.costs.predict(StepFeatures.of(plan))

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        self.steps.append(Step(StepFeatures.of(plan), self._foretold_s, result.elapsed_s))


class CpuForeteller(Foreteller):
    """The same for CPU time, with a cost model of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._planned_at_s = 0.0

    def on_planned(self, plan: StepPlan, waits: Waits, now: float) -> None:
        super().on_planned(plan, waits, now)
        self._planned_at_s = time.process_time()

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        features, elapsed_s = StepFeatures.of(plan), time.process_time() - self._planned_at_s
        self.steps.append(Step(features, self._foretold_s, elapsed_s))
        self.costs.observe(features, elapsed_s)


def profile(engine: Engine) -> float:
    """Let an idle engine measure; seconds it took."""
    started = time.perf_counter()
    while engine.idle.advance():
        pass
    return time.perf_counter() - started


def run(engine: Engine, num_steps: int, rng: random.Random) -> None:
    """Random requests, with a load that changes every few steps."""
    number = num_open = 0
    for step in range(num_steps):
        if step % NUM_STEPS_PER_LOAD == 0:
            target = rng.choice((1, 2, 4, 8, 16, 32))
        while num_open < target:
            number, num_open = number + 1, num_open + 1
            engine.submit(_request(engine, number, rng))
        num_open -= sum(output.finish_reason is not None for output in engine.step())


def _request(engine: Engine, number: int, rng: random.Random) -> Request:
    num_tokens = min(int(16 * 2 ** rng.uniform(0, 5.2)), MAX_PROMPT_TOKENS, engine.info.max_model_len // 2)
    return Request(
        request_id=str(number),
        prompt_token_ids=[rng.randrange(engine.info.vocab_size) for _ in range(num_tokens)],
        sampling=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=rng.randint(8, MAX_OUTPUT_TOKENS)),
        seed=0,
        arrival_time=float(number),
    )


def rows_of(steps: list[Step]) -> list[Row]:
    kinds = [kind for kind in ("decode", "prompt", "both") if any(step.kind == kind for step in steps)]
    return [_row(kind, [step for step in steps if step.kind == kind]) for kind in kinds] + [_row("all", steps)]


def _row(kind: str, steps: list[Step]) -> Row:
    errors = sorted(step.error for step in steps)
    times = sorted(step.measured_s for step in steps)
    middle, nine_tenths = len(steps) // 2, int(0.9 * (len(steps) - 1))
    return Row(kind, len(steps), 1000 * times[middle], errors[middle], errors[nine_tenths])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-num-batched-tokens", type=int, default=256)
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time, with one thread")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args(argv)
    config = EngineConfig(
        model=arguments.model,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_num_seqs=32,
        threads=1 if arguments.cpu_time else None,
    )
    foreteller = CpuForeteller() if arguments.cpu_time else Foreteller()
    engine = build_engine(config, NullProgress(), (foreteller,))
    if not arguments.cpu_time:
        foreteller.costs = engine.meters.costs
    profile_s = profile(engine)
    run(engine, arguments.steps, random.Random(arguments.seed))
    costs = foreteller.costs.costs
    rows = rows_of(foreteller.steps)
    _print(engine.info.model, profile_s, costs, rows)
    if arguments.json:
        report = {"profile_s": profile_s, "costs": _fields(costs), "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    engine.close()
    return 0


def _fields(costs: StepCosts) -> dict[str, float]:
    return msgspec.structs.asdict(costs)


def _print(model: str, profile_s: float, costs: StepCosts, rows: list[Row]) -> None:
    print(f"{model}: measured made-up steps for {profile_s:.2f} s (0.00: costs were known from an earlier run)")
    print(", ".join(f"{name} {value:.3g}" for name, value in _fields(costs).items()))
    print(f"{'steps':10}{'number':>8}{'median ms':>11}{'median error':>14}{'p90 error':>11}")
    for row in rows:
        print(
            f"{row.kind:10}{row.num_steps:8}{row.median_step_ms:11.2f}{row.median_error:14.1%}{row.p90_error:11.1%}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
