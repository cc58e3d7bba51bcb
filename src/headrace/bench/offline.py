"""Benchmarks of the engine in this process: throughput of many prompts at once, latency of one batch after another.

Results hold the figures that ``bench compare`` reads and, beside them, the fields of vLLM's ``bench throughput``
and ``bench latency`` and of SGLang's ``bench_offline_throughput`` under their own names.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import numpy as np

from headrace.bench.comparison import Direction, Figure
from headrace.bench.lengths import Lengths
from headrace.bench.prompt_text import IdWriter
from headrace.bench.report import Machine
from headrace.bench.statistics import percentile
from headrace.core.config import EngineConfig
from headrace.core.errors import RequestFailed
from headrace.core.progress import Progress
from headrace.core.sampling import SamplingParams
from headrace.llm.loading import LoadedModel, load_model
from headrace.llm.offline import LLM
from headrace.llm.prompts import Prompt

_VLLM_RANKS = (10, 25, 50, 75, 90, 99)
_FIRST_ORDINARY_ID = 256


class OfflineResult(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark in-process; ``figures`` has a value for each run, ``fields`` are another benchmark's names."""

    headrace_results: int = 1
    name: str
    date: str
    headrace_version: str
    machine: Machine
    model: str
    options: dict[str, object]
    figures: dict[str, Figure]
    fields: dict[str, object]

    def flat(self) -> dict[str, object]:
        """As it is written: the other benchmark's fields on the level where its readers look for them."""
        own: dict[str, object] = msgspec.to_builtins(self)
        return {**{name: value for name, value in own.items() if name != "fields"}, **self.fields}


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts of random tokens and how long their answers are; every answer is as long as it may be."""

    num_prompts: int
    input_len: Lengths
    output_len: Lengths
    n: int = 1

    def draw(self, vocab_size: int, seed: Sequence[int]) -> tuple[list[Prompt], list[SamplingParams]]:
        rng = np.random.default_rng(seed)
        writer = IdWriter(min(_FIRST_ORDINARY_ID, vocab_size // 2), vocab_size)
        ids = [writer.write(self.input_len.draw(rng), rng) for _ in range(self.num_prompts)]
        prompts: list[Prompt] = [{"prompt_token_ids": each} for each in ids if isinstance(each, list)]
        params = [
            SamplingParams(temperature=0.0, n=self.n, max_tokens=self.output_len.draw(rng), ignore_eos=True)
            for _ in range(self.num_prompts)
        ]
        return prompts, params


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """What is run how often; ``version`` and ``machine`` are for the result."""

    config: EngineConfig
    batch: Batch
    num_runs: int
    num_warmups: int
    version: str
    machine: Machine


@dataclass(frozen=True, slots=True)
class _Run:
    """One batch, timed. Seconds of the clock and of all CPUs; counts of tokens."""

    elapsed_s: float
    cpu_s: float
    num_input_tokens: int
    num_output_tokens: int


def run_throughput(job: OfflineJob, progress: Progress) -> OfflineResult:
    """All prompts at once, as often as asked, each time with new ones. Raises ``ConfigError``, ``InvalidRequest``."""
    runs = _run_all(job, "throughput", progress)
    figures = {
        "request throughput": _figure(runs, "req/s", lambda run: job.batch.num_prompts / run.elapsed_s),
        "output throughput": _figure(runs, "tok/s", lambda run: run.num_output_tokens / run.elapsed_s),
        "total throughput": _figure(
            runs, "tok/s", lambda run: (run.num_input_tokens + run.num_output_tokens) / run.elapsed_s
        ),
        **_costs(runs),
    }
    middle = sorted(runs, key=lambda run: run.elapsed_s)[(len(runs) - 1) // 2]
    num_tokens = middle.num_input_tokens + middle.num_output_tokens
    fields: dict[str, object] = {
        "model_id": job.config.model,
        "elapsed_time": middle.elapsed_s,
        "num_requests": job.batch.num_prompts,
        "total_num_tokens": num_tokens,
        "requests_per_second": job.batch.num_prompts / middle.elapsed_s,
        "tokens_per_second": num_tokens / middle.elapsed_s,
        "successful_requests": job.batch.num_prompts,
        "total_latency": middle.elapsed_s,
        "total_input_tokens": middle.num_input_tokens,
        "total_output_tokens": middle.num_output_tokens,
        "request_throughput": job.batch.num_prompts / middle.elapsed_s,
        "input_throughput": middle.num_input_tokens / middle.elapsed_s,
        "output_throughput": middle.num_output_tokens / middle.elapsed_s,
        "total_throughput": num_tokens / middle.elapsed_s,
    }
    return _result("throughput", job, figures, fields)


def run_latency(job: OfflineJob, progress: Progress) -> OfflineResult:
    """One batch after another, from prompts to last token. Raises ``ConfigError``, ``InvalidRequest``."""
    runs = _run_all(job, "latency", progress)
    latencies = [run.elapsed_s for run in runs]
    figures = {
        "batch latency": Figure([1e3 * latency for latency in latencies], "ms", Direction.LOWER),
        "time per token": _figure(
            runs, "ms", lambda run: 1e3 * run.elapsed_s * job.batch.num_prompts / run.num_output_tokens, Direction.LOWER
        ),
        **_costs(runs),
    }
    fields: dict[str, object] = {
        "model_id": job.config.model,
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": {str(rank): percentile(latencies, rank) for rank in _VLLM_RANKS},
    }
    return _result("latency", job, figures, fields)


def _run_all(job: OfflineJob, label: str, progress: Progress) -> list[_Run]:
    loaded = load_model(job.config, progress)
    with LLM.from_loaded(loaded, job.config.seed) as llm:
        for number in range(job.num_warmups):
            _run_once(llm, loaded, job.batch, [number, 1])
        progress.start(label, job.num_runs, "items")
        try:
            runs = []
            for number in range(job.num_runs):
                runs.append(_run_once(llm, loaded, job.batch, [number, 0]))
                progress.advance(1)
        finally:
            progress.finish()
    return runs


def _run_once(llm: LLM, loaded: LoadedModel, batch: Batch, seed: Sequence[int]) -> _Run:
    prompts, params = batch.draw(loaded.engine.info.vocab_size, seed)
    cpu_s, started = time.process_time(), time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    failed = [answer.error for output in outputs for answer in output.outputs if answer.error is not None]
    if failed:
        raise RequestFailed(f"{len(failed)} answers failed: {failed[0]}")
    num_output = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return _Run(elapsed_s, cpu_s, sum(len(output.prompt_token_ids) for output in outputs), num_output)


def _figure(
    runs: Sequence[_Run], unit: str, of: Callable[[_Run], float], direction: Direction = Direction.HIGHER
) -> Figure:
    return Figure([of(run) for run in runs], unit, direction)


def _costs(runs: Sequence[_Run]) -> dict[str, Figure]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "CPU per output token": _figure(
            runs, "ms", lambda run: 1e3 * run.cpu_s / run.num_output_tokens, Direction.LOWER
        ),
        "peak memory": Figure([peak], "MiB", Direction.LOWER),
    }


def _result(name: str, job: OfflineJob, figures: dict[str, Figure], fields: dict[str, object]) -> OfflineResult:
    batch = job.batch
    return OfflineResult(
        name=f"{name} of {job.config.model}",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        headrace_version=job.version,
        machine=job.machine,
        model=job.config.model,
        options={
            "num_prompts": batch.num_prompts,
            "input_len": msgspec.to_builtins(batch.input_len),
            "output_len": msgspec.to_builtins(batch.output_len),
            "n": batch.n,
            "num_runs": job.num_runs,
            "num_warmups": job.num_warmups,
        },
        figures=figures,
        fields=fields,
    )
