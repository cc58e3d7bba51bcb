"""Thousands of small simulations of the real engine, each drawn from its seed, with every invariant checked.

    python -m tests.sim.random_simulations 0:10000            ten thousand seeds on all cores
    python -m tests.sim.random_simulations 4711               one of them, with its traceback

What must hold in each step: the blocks of the pool have one owner each; the plan keeps to its limits, continues
every sequence where it stopped and is empty only without work; time does not run backwards. And at the end: every
request has ended in exactly one way and within the bound, with just the tokens of its script if it was served;
nothing holds a block; what cannot be skipped was not skipped.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Mapping

from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.scheduler.policy import SchedulerListener
from headrace.scheduler.waits import Waits
from headrace.sim.record import Outcome, RequestRecord
from headrace.sim.simulator import Simulator
from tests.seed_range import in_chunks, num_cores, seed_range
from tests.sim.workloads import Case, random_case


class PlanChecker(SchedulerListener):
    """Hears every step and holds it to the limits."""

    def __init__(self, case: Case) -> None:
        self.limits = case.replica.limits
        self.now = 0.0
        self.ended: set[int] = set()
        self.computed: dict[int, int] = {}

    def on_planned(self, plan: StepPlan, waits: Waits, now: float) -> None:
        assert now >= self.now, "time runs backwards"
        self.now = now
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert len(plan.scheduled) <= self.limits.max_num_seqs
        seq_ids = [item.seq_id for item in plan.scheduled]
        assert len(set(seq_ids)) == len(seq_ids), "a sequence is in one step twice"
        assert not set(seq_ids) & set(plan.preempted_seq_ids), "a preempted sequence is computed"
        assert all(len(item.token_ids) > 0 for item in plan.scheduled)

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        for item in plan.scheduled:
            assert item.start == running[item.seq_id].num_computed_tokens, "a chunk does not begin where the last ended"

    def on_admitted(self, seq: Sequence, now: float) -> None:
        assert now >= seq.request.arrival_time, "a request starts before it came"

    def on_finished(self, seq: Sequence) -> None:
        assert seq.seq_id not in self.ended, "a sequence ended twice"
        self.ended.add(seq.seq_id)


def check(seed: int) -> None:
    """Run one simulation; raises AssertionError on any broken promise."""
    case = random_case(seed)
    checker = PlanChecker(case)
    simulator = Simulator(case.requests, case.replica, [checker])
    aborts = _aborts(case, random.Random(f"aborts {seed}"))
    bound = _max_num_steps(case)
    while simulator.has_work:
        while aborts and aborts[-1][0] <= simulator.clock.now():
            simulator.engine.abort(str(aborts.pop()[1]))
        had_work, before = simulator.engine.has_work, simulator.clock.now()
        simulator.tick()
        assert not had_work or simulator.clock.now() > before or not simulator.scheduler.has_work, "work stands still"
        _check_books(simulator)
        simulator.skip()
        assert simulator.num_steps <= bound, f"somebody starves: {simulator.num_steps} steps"
    _check_end(case, simulator)


def _aborts(case: Case, rng: random.Random) -> list[tuple[float, int]]:
    """When which requests are abandoned, the first last."""
    if rng.random() < 0.5:
        return []
    last_s = case.requests[-1].arrival_s + 1.0
    chosen = rng.sample(case.requests, rng.randint(1, len(case.requests)))
    return sorted(((rng.uniform(0.0, last_s), request.index) for request in chosen), reverse=True)


def _max_num_steps(case: Case) -> int:
    """Steps within which all must be over: every token in a step of its own, several times over for preemptions.

    What came first is never a victim, so each request can be set back only while one before it is served.
    """
    num_tokens = sum(r.trace.num_input_tokens + r.trace.num_output_tokens for r in case.requests)
    return 40 + 6 * num_tokens


def _check_books(simulator: Simulator) -> None:
    violations = simulator.kv.check()
    assert not violations, violations


def _check_end(case: Case, simulator: Simulator) -> None:
    assert simulator.kv.num_private_blocks == 0, "somebody who ended holds blocks"
    assert len(simulator.scheduler.running) == simulator.scheduler.num_waiting == 0
    if not case.replica.enable_prefix_caching:
        assert simulator.kv.num_free_blocks == case.replica.num_blocks
    for record in simulator.records:
        assert record.outcome is not None, f"request {record.offered.index} never ended"
        assert record.outcome is not Outcome.FAILED, f"request {record.offered.index} failed"
        _check_record(record)


def _check_record(record: RequestRecord) -> None:
    trace = record.offered.trace
    assert record.num_output_tokens <= trace.num_output_tokens
    assert record.num_cached_tokens < trace.num_input_tokens
    if record.outcome is Outcome.SERVED:
        assert record.num_output_tokens == trace.num_output_tokens, "an answer is not the scripted one"
        assert record.offered.arrival_s < record.first_token_s <= record.last_token_s == record.finished_s
        assert record.longest_gap_s <= record.last_token_s - record.first_token_s + 1e-9
    if record.outcome is Outcome.EXPIRED:
        assert record.finished_s - record.offered.arrival_s >= record.offered.level.deadline_s - 1e-9
    if record.outcome is Outcome.REJECTED:
        assert record.num_output_tokens == 0, "a request was refused after work had been done for it"
    if record.outcome is Outcome.TOO_LONG:
        assert not record.is_admitted


def failures(seeds: range) -> list[tuple[int, str]]:
    """Seeds that break a promise, and what was broken."""
    broken = []
    for seed in seeds:
        try:
            check(seed)
        except Exception as error:
            broken.append((seed, f"{type(error).__name__}: {error}"))
    return broken


def reproduction(seed: int, message: str) -> str:
    return f"seed {seed}: {message}\n  reproduce with: python -m tests.sim.random_simulations {seed}"


def run_range(seeds: range, num_workers: int) -> int:
    """Run many seeds; prints what failed and returns how many did."""
    started = time.perf_counter()
    broken = [failure for chunk in in_chunks(failures, seeds, num_workers) for failure in chunk]
    for seed, message in broken:
        print(reproduction(seed, message))
    elapsed_s = time.perf_counter() - started
    print(f"{len(seeds)} simulations in {elapsed_s:.1f} s on {num_workers} cores, {len(broken)} failed")
    return len(broken)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Simulate random workloads and check every invariant.")
    parser.add_argument("seeds", type=seed_range, help="one seed, or a range START:STOP")
    parser.add_argument("--workers", type=int, default=num_cores(), help="default: all cores")
    arguments = parser.parse_args(argv)
    if len(arguments.seeds) > 1:
        return int(run_range(arguments.seeds, arguments.workers) > 0)
    seed = arguments.seeds.start
    try:
        check(seed)
    except Exception as error:
        traceback.print_exc()
        print(reproduction(seed, f"{type(error).__name__}: {error}"))
        return 1
    print(f"seed {seed} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
