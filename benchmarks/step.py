"""What one engine step costs, and how much of it is Python.

For each number of running sequences: prompts are computed, then decode steps are timed through the real
``Engine.step``. A step's time splits into the executor's (``StepStats.step_s``) and the rest, which is all
Python: scheduling, bookkeeping, detokenising, outputs. With a model, a few more steps run under torch's
profiler; what of the executor's time is not inside torch operators is Python too (an upper bound, since the
profiler itself takes some).

    python benchmarks/step.py                      the default model at 1, 16 and 64 sequences
    python benchmarks/step.py --executor fake      scheduling alone, no model, no torch
    python benchmarks/step.py --sampling random --json out.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.client import EngineInfo
from headrace.core.clock import WallClock
from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.engine.constraints import GrammarSource, NoGrammars
from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine, num_threads
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextStream
from headrace.scheduler.policy import FcfsPolicy
from headrace.scheduler.scheduler import BatchLimits, Scheduler

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "random": SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True),
}
NUM_PROFILED_STEPS = 5
NUM_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Workload:
    """What every sequence does: a random prompt, then as many decode steps as are timed."""

    num_prompt_tokens: int
    num_steps: int
    sampling: str

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_steps + NUM_WARM_UP_STEPS + NUM_PROFILED_STEPS + 64


@dataclass(frozen=True)
class Measurement:
    """One row of the table; times in milliseconds per step."""

    num_running: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    step_ms: float
    executor_ms: float
    engine_python_ms: float
    engine_python_p99_ms: float
    executor_python_ms: float | None


class FakeExecutor:
    """Answers every sample with a letter and computes nothing."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        started = time.perf_counter()
        tokens = [97 + item.end % 26 for item in plan.scheduled if item.sample is not None]
        return StepResult(sampled_token_ids=tokens, elapsed_s=time.perf_counter() - started)

    def close(self) -> None:
        pass


class ByteTexts:
    """Token ``i`` is the byte ``i``."""

    grammars: GrammarSource = NoGrammars()

    def __init__(self) -> None:
        self._token_bytes = [bytes([value]) for value in range(256)]

    def text_streams(self, sampling: SamplingParams) -> list[TextStream]:
        stops = StopStrings(sampling.stop)
        return [TextStream(ByteDetokenizer(self._token_bytes), stops) for _ in range(sampling.n)]


def build_fake_engine(config: EngineConfig, num_tokens: int) -> Engine:
    """The real engine, scheduler and cache over ``FakeExecutor``, with room for everybody."""
    num_blocks = config.max_num_seqs * (num_tokens // config.block_size + 1)
    kv = KVCacheManager(num_blocks, config.block_size, config.enable_prefix_caching)
    scheduler = Scheduler(
        kv,
        FcfsPolicy(config.max_num_batched_tokens),
        BatchLimits(config.max_num_seqs, config.max_num_batched_tokens, num_tokens),
    )
    info = EngineInfo(
        model="fake",
        architecture="fake",
        dtype="none",
        backend="fake",
        num_parameters=0,
        vocab_size=256,
        max_model_len=num_tokens,
        block_size=config.block_size,
        num_blocks=num_blocks,
        kv_cache_bytes=0,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    return Engine(scheduler, kv, FakeExecutor(num_blocks), ByteTexts(), WallClock(), info)


def measure(engine: Engine, num_running: int, workload: Workload) -> Measurement:
    """Time ``num_running`` sequences from prompt to decode, then end them."""
    requests = make_requests(engine, num_running, workload)
    prefill_s = compute_prompts(engine, requests)
    for _ in range(NUM_WARM_UP_STEPS):
        engine.step()
    totals, executors = [], []
    for _ in range(workload.num_steps):
        started = time.perf_counter()
        engine.step()
        totals.append(time.perf_counter() - started)
        executors.append(engine.stats().step_s)
    assert engine.stats().num_running == num_running, "a sequence ended or was preempted while it was timed"
    executor_python_s = None if engine.info.backend == "fake" else profile_executor(engine)
    for request in requests:
        engine.abort(request.request_id)
    while engine.has_work:
        engine.step()
    pythons = [total - executor for total, executor in zip(totals, executors, strict=True)]
    return Measurement(
        num_running=num_running,
        prefill_tokens_per_s=num_running * workload.num_prompt_tokens / prefill_s,
        decode_tokens_per_s=num_running * len(totals) / sum(totals),
        step_ms=1e3 * statistics.mean(totals),
        executor_ms=1e3 * statistics.mean(executors),
        engine_python_ms=1e3 * statistics.mean(pythons),
        engine_python_p99_ms=1e3 * sorted(pythons)[int(0.99 * len(pythons))],
        executor_python_ms=None if executor_python_s is None else 1e3 * executor_python_s,
    )


def make_requests(engine: Engine, num_running: int, workload: Workload) -> list[Request]:
    rng = random.Random(num_running)
    low, high = (97, 123) if engine.info.backend == "fake" else (1000, engine.info.vocab_size)
    prompt_length = workload.num_prompt_tokens
    sampling = msgspec.structs.replace(SAMPLINGS[workload.sampling], max_tokens=workload.num_tokens - prompt_length)
    return [
        Request(
            request_id=f"{num_running}-{index}",
            prompt_token_ids=[rng.randrange(low, high) for _ in range(prompt_length)],
            sampling=sampling,
            seed=index,
            arrival_time=time.monotonic(),
        )
        for index in range(num_running)
    ]


def compute_prompts(engine: Engine, requests: list[Request]) -> float:
    """Submit everything and step until each request has its first token; seconds."""
    started = time.perf_counter()
    for request in requests:
        engine.submit(request)
    waiting = {request.request_id for request in requests}
    while waiting:
        waiting -= {output.request_id for output in engine.step() if output.token_ids}
    return time.perf_counter() - started


def profile_executor(engine: Engine) -> float:
    """Seconds per step that the executor spends outside torch operators, by torch's own account."""
    from torch.profiler import ProfilerActivity, profile

    executor_s = 0.0
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(NUM_PROFILED_STEPS):
            engine.step()
            executor_s += engine.stats().step_s
    operators_s: float = sum(event.self_cpu_time_total for event in profiler.key_averages()) * 1e-6
    return max(0.0, executor_s - operators_s) / NUM_PROFILED_STEPS


def environment(config: EngineConfig) -> dict[str, str]:
    """Where the numbers come from."""
    return {
        "python": platform.python_version(),
        **{name: installed_version(name) for name in ("headrace", "numpy", "torch", "msgspec")},
        "cpu": cpu_name(),
        "threads": str(num_threads(config)),
        "load average": f"{os.getloadavg()[0]:.1f}",
    }


def installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def print_report(environment: dict[str, str], engine: EngineInfo, rows: list[Measurement]) -> None:
    print(", ".join(f"{name} {value}" for name, value in environment.items()))
    print(f"{engine.model}, {engine.dtype}, blocks of {engine.block_size}; times in ms per step\n")
    print(
        f"{'running':>8}{'prefill tok/s':>15}{'decode tok/s':>14}{'step':>10}{'executor':>10}"
        f"{'engine py':>11}{'p99':>8}{'executor py':>13}"
    )
    for row in rows:
        executor_python = "-" if row.executor_python_ms is None else f"{row.executor_python_ms:.2f}"
        print(
            f"{row.num_running:>8}{row.prefill_tokens_per_s:>15.0f}{row.decode_tokens_per_s:>14.1f}"
            f"{row.step_ms:>10.2f}{row.executor_ms:>10.2f}"
            f"{row.engine_python_ms:>11.3f}{row.engine_python_p99_ms:>8.3f}{executor_python:>13}"
        )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time engine steps and Python's share of them.")
    parser.add_argument("--executor", choices=("model", "fake"), default="model")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64], help="numbers of running sequences")
    parser.add_argument("--steps", type=int, default=50, help="decode steps to time")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--sampling", choices=tuple(SAMPLINGS), default="greedy")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    workload = Workload(arguments.prompt_tokens, arguments.steps, arguments.sampling)
    config = EngineConfig(
        model=arguments.model,
        threads=arguments.threads,
        max_num_seqs=max(arguments.running),
        max_model_len=workload.num_tokens,
    )
    if arguments.executor == "fake":
        engine = build_fake_engine(config, workload.num_tokens)
    else:
        engine = build_engine(config, NullProgress())
    rows = [measure(engine, num_running, workload) for num_running in arguments.running]
    where = environment(config)
    print_report(where, engine.info, rows)
    if arguments.json is not None:
        report = {
            "environment": where,
            "model": engine.info.model,
            "workload": asdict(workload),
            "rows": [asdict(row) for row in rows],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
