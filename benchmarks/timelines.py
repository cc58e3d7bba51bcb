"""What recording timelines costs, as a share of a step.

The recorder listens to the real scheduler over an executor that computes nothing, and every call of it is timed; the
step it is compared with is a decode step of a real model with as many sequences, timed in the same run.

    python benchmarks/timelines.py                              the default model, 1, 16 and 64 sequences running
    python benchmarks/timelines.py --running 64 --waiting 1000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.clock import WallClock
from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.engine.factory import build_engine
from headrace.engine.timeline import TimelineRecorder
from headrace.scheduler.policy import FcfsPolicy
from headrace.scheduler.scheduler import BatchLimits, Scheduler

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 64
NUM_WARM_UP_STEPS = 5
_CALLS = ("on_queued", "on_admitted", "on_planned", "on_step", "on_preempted", "on_finished")


@dataclass(frozen=True)
class Row:
    """One number of running sequences; ``share`` is of a real step."""

    num_running: int
    num_waiting: int
    recording_us: float
    step_ms: float
    share: float


class TimedRecorder(TimelineRecorder):
    """Adds up the seconds that its own methods take."""

    def __init__(self, block_size: int) -> None:
        super().__init__(WallClock(), block_size)
        self.spent_s = 0.0
        for name in _CALLS:
            setattr(self, name, self._timed(getattr(self, name)))

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        @wraps(method)
        def timed(*arguments: Any) -> None:
            started = time.perf_counter()
            method(*arguments)
            self.spent_s += time.perf_counter() - started

        return timed


def request(number: int, max_tokens: int) -> Request:
    prompt = [(number * 37 + index * 11) % 250 for index in range(NUM_PROMPT_TOKENS)]
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        seed=number,
        arrival_time=time.monotonic(),
    )


def recording_us(num_running: int, num_waiting: int, num_steps: int) -> float:
    """Microseconds of recording per decode step, median over steps; sequences come and go meanwhile."""
    budget = max(512, num_running)
    max_tokens = 2 * num_steps
    num_blocks = num_running * -(-(NUM_PROMPT_TOKENS + max_tokens) // BLOCK_SIZE) + num_running
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True)
    recorder = TimedRecorder(BLOCK_SIZE)
    limits = BatchLimits(num_running, budget, NUM_PROMPT_TOKENS + max_tokens)
    scheduler = Scheduler(kv, FcfsPolicy(budget), limits, listeners=[recorder])
    for number in range(num_running + num_waiting):
        # they end at different steps, and another starts in their place
        scheduler.add(Sequence(number, request(number, num_steps // 2 + number % num_steps), 0, frozenset()))
    spent: list[float] = []
    for _ in range(num_steps):
        before = recorder.spent_s
        plan = scheduler.schedule(time.monotonic())
        scheduler.update(plan, _answer(plan), time.monotonic())
        spent.append(recorder.spent_s - before)
    return statistics.median(spent) * 1e6


def _answer(plan: StepPlan) -> StepResult:
    return StepResult([97 + item.end % 26 for item in plan.scheduled if item.sample is not None], 0.001)


def real_step_s(config: EngineConfig, num_running: int, num_steps: int) -> float:
    """Seconds of a decode step of the model, median."""
    engine = build_engine(config, NullProgress())
    for number in range(num_running):
        engine.submit(request(number, NUM_WARM_UP_STEPS + num_steps + 200))
    while engine.stats().num_waiting or engine.stats().num_step_tokens != num_running:
        engine.step()
    for _ in range(NUM_WARM_UP_STEPS):
        engine.step()
    times = []
    for _ in range(num_steps):
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    engine.close()
    return statistics.median(times)


def measure(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for num_running in arguments.running:
        spent_us = recording_us(num_running, arguments.waiting, arguments.steps)
        config = EngineConfig(model=arguments.model, max_num_seqs=num_running, enable_timelines=False)
        step_s = real_step_s(config, num_running, min(arguments.steps, 20))
        rows.append(Row(num_running, arguments.waiting, spent_us, step_s * 1e3, spent_us * 1e-6 / step_s))
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What recording timelines costs, as a share of a step.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64], help="numbers of running sequences")
    parser.add_argument("--waiting", type=int, default=100, help="sequences waiting behind them")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    arguments = parser.parse_args(argv)
    rows = measure(arguments)
    print("running  waiting  recording us  step ms  share")
    for row in rows:
        print(
            f"{row.num_running:7d}  {row.num_waiting:7d}  {row.recording_us:12.1f}  {row.step_ms:7.2f}  "
            f"{100 * row.share:.3f} %"
        )
    if arguments.json:
        report = {"model": arguments.model, "steps": arguments.steps, "rows": [asdict(row) for row in rows]}
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
