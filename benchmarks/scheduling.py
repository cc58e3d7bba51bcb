"""What deciding a step costs, and that the cost does not grow with how many wait.

The real scheduler and KV cache run without an executor: a fixed number of sequences decode, any number of
others wait behind them (the running set is full), and ``schedule`` and ``update`` are timed. Times are
medians and 99th percentiles over the steps, in microseconds; on a machine with other work the minimum says
more, so it is there too. No model, no tokenizer.

    python benchmarks/scheduling.py
    python benchmarks/scheduling.py --policy slo --running 64 --waiting 0 100 1000 10000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence
from headrace.core.service_level import STANDARD_CLASSES
from headrace.core.step import StepResult
from headrace.scheduler.build import PolicyName, build_scheduler
from headrace.scheduler.cost_model import StepCostModel, StepCosts
from headrace.scheduler.scheduler import BatchLimits, Scheduler

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 256
NUM_TENANTS = 8
MACHINE = StepCosts(fixed_s=0.010, num_free_tokens=0, token_s=2e-5, decode_s=5e-6, context_s=1e-8, pair_s=1e-9)


@dataclass(frozen=True)
class Measurement:
    """One row of the table; microseconds per step."""

    policy: str
    num_running: int
    num_waiting: int
    schedule_us: float
    update_us: float
    step_us: float
    step_p99_us: float
    step_min_us: float


def build(policy: PolicyName, num_running: int, num_steps: int) -> Scheduler:
    """A scheduler with room for so many sequences and not one more."""
    num_tokens = NUM_PROMPT_TOKENS + num_steps + BLOCK_SIZE
    kv = KVCacheManager(num_running * (num_tokens // BLOCK_SIZE + 2), BLOCK_SIZE, enable_prefix_caching=True)
    limits = BatchLimits(num_running, 8192, num_tokens + BLOCK_SIZE)
    return build_scheduler(policy, kv, limits, StepCostModel(MACHINE))


def add(scheduler: Scheduler, first_id: int, count: int, max_tokens: int) -> None:
    """Queue sequences of all classes and several tenants, each with a prompt of its own."""
    classes = list(STANDARD_CLASSES.items())
    for seq_id in range(first_id, first_id + count):
        name, level = classes[seq_id % len(classes)]
        request = Request(
            request_id=str(seq_id),
            prompt_token_ids=[seq_id] * NUM_PROMPT_TOKENS,
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            seed=0,
            arrival_time=seq_id * 1e-4,
            service_level=level,
            service_class=name,
            tenant=f"tenant-{seq_id % NUM_TENANTS}",
        )
        scheduler.add(Sequence(seq_id, request, 0, frozenset()))


def measure(policy: PolicyName, num_running: int, num_waiting: int, num_steps: int) -> Measurement:
    """Fill the running set, queue the others behind it, and time decode steps."""
    scheduler = build(policy, num_running, num_steps + 16)
    add(scheduler, 0, num_running, num_steps + 16)
    now = 0.0
    while scheduler.num_waiting:
        now = _step(scheduler, now)[2]
    add(scheduler, num_running, num_waiting, num_steps)
    for _ in range(8):
        now = _step(scheduler, now)[2]
    times = []
    for _ in range(num_steps):
        schedule_s, update_s, now = _step(scheduler, now)
        times.append((schedule_s * 1e6, update_s * 1e6))
    totals = sorted(schedule_us + update_us for schedule_us, update_us in times)
    return Measurement(
        policy=policy,
        num_running=num_running,
        num_waiting=num_waiting,
        schedule_us=statistics.median(time_us for time_us, _ in times),
        update_us=statistics.median(time_us for _, time_us in times),
        step_us=statistics.median(totals),
        step_p99_us=totals[int(0.99 * (len(totals) - 1))],
        step_min_us=totals[0],
    )


def _step(scheduler: Scheduler, now: float) -> tuple[float, float, float]:
    """Decide one step and take in made-up tokens; the seconds both took, and the time after the step."""
    started = time.perf_counter()
    plan = scheduler.schedule(now)
    decided = time.perf_counter()
    elapsed_s = 0.012
    result = StepResult(sampled_token_ids=[7] * plan.num_samples, elapsed_s=elapsed_s)
    applied = time.perf_counter()
    scheduler.update(plan, result, now + elapsed_s)
    return decided - started, time.perf_counter() - applied, now + elapsed_s


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="+", choices=get_args(PolicyName), default=["fcfs", "slo"])
    parser.add_argument("--running", type=int, nargs="+", default=[64])
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 1000, 10_000])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args(argv)
    columns = ("waiting", "schedule us", "update us", "step us", "p99 us", "least us")
    print(f"{'policy':10}{'running':>8}" + "".join(f"{column:>12}" for column in columns))
    rows = []
    for policy in arguments.policy:
        for num_running in arguments.running:
            for num_waiting in arguments.waiting:
                row = measure(policy, num_running, num_waiting, arguments.steps)
                rows.append(row)
                print(
                    f"{row.policy:10}{row.num_running:8}{row.num_waiting:12}{row.schedule_us:12.0f}"
                    f"{row.update_us:12.0f}{row.step_us:12.0f}{row.step_p99_us:12.0f}{row.step_min_us:12.0f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
