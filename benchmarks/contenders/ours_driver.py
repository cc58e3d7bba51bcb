"""Measures headrace's engine on one scenario, in a process of its own; prints one JSON object.

    python -m contenders.ours_driver MODEL THREADS KERNELS SCENARIO

``SCENARIO`` is the scenario's fields as JSON, ``KERNELS`` an instruction set or empty for the machine's best.
Everything goes through the real ``Engine``: scheduler, cache, sampling, detokenising.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import msgspec

from contenders.scenario import Kind, Scenario
from headrace.cache.kv_cache import KVCacheManager
from headrace.checkpoint.open import open_checkpoint
from headrace.core.clock import WallClock
from headrace.core.config import EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import TokenizerTexts, build_engine, num_threads
from headrace.engine.tokenizer import load_tokenizer
from headrace.executor.kv_format import kv_format
from headrace.executor.native_executor import NativeExecutor, runtime_sizes
from headrace.executor.native_weights import pack_model, weight_choice
from headrace.model.config_parser import parse_model_config
from headrace.native.program import NativeProgram
from headrace.scheduler.policy import FcfsPolicy
from headrace.scheduler.scheduler import BatchLimits, Scheduler

NUM_SPARE_TOKENS = 64
WARM_UP_TOKENS = range(16, 513)
"""Fewest and most tokens of the prompt that warms up."""


class Measurer:
    """An engine with the facts that a scenario needs."""

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self._engine = engine
        self._rng = random.Random(1)
        self._tokens = range(vocab_size // 16, vocab_size // 2)  # ordinary ones, not the special ones at the ends
        self._num_requests = 0

    def measure(self, scenario: Scenario) -> dict[str, float]:
        num_warm_up_tokens = min(max(scenario.prompt, WARM_UP_TOKENS[0]), WARM_UP_TOKENS[-1])
        self._run([self._submit(num_warm_up_tokens, 4)])
        if scenario.kind is Kind.DECODE:
            return self._decode(scenario)
        ids = [self._submit(scenario.prompt, scenario.output) for _ in range(scenario.sequences)]
        elapsed_s, executor_s = self._run(ids)
        num_tokens = scenario.sequences * (scenario.output if scenario.kind is Kind.BATCH else scenario.prompt)
        return {"tokens_per_s": num_tokens / elapsed_s, "executor_tokens_per_s": num_tokens / executor_s}

    def _decode(self, scenario: Scenario) -> dict[str, float]:
        """Steps of one token; the first token belongs to the prompt."""
        request_id = self._submit(max(1, scenario.depth), scenario.output + 1)
        while not any(output.token_ids for output in self._engine.step()):
            pass
        elapsed_s, executor_s = self._run([request_id])
        return {
            "tokens_per_s": scenario.output / elapsed_s,
            "executor_tokens_per_s": scenario.output / executor_s,
        }

    def _submit(self, num_prompt_tokens: int, num_output_tokens: int) -> str:
        self._num_requests += 1
        request_id = str(self._num_requests)
        sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
        prompt = self._rng.choices(self._tokens, k=num_prompt_tokens)
        self._engine.submit(
            Request(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=self._num_requests,
                arrival_time=time.monotonic(),
            )
        )
        return request_id

    def _run(self, request_ids: list[str]) -> tuple[float, float]:
        """Step until all have ended; seconds in all, and those of them in the executor."""
        waiting = set(request_ids)
        executor_s = 0.0
        started = time.perf_counter()
        while waiting:
            for output in self._engine.step():
                assert output.error is None, output.error
                if output.finish_reason is not None:
                    waiting.discard(output.request_id)
            executor_s += self._engine.stats().step_s
        return time.perf_counter() - started, executor_s


def build(config: EngineConfig, kernels: str) -> tuple[Engine, dict[str, float | str]]:
    """The engine, and the facts its results are judged by."""
    checkpoint = open_checkpoint(Path(config.model))
    model = parse_model_config(checkpoint)
    engine = build_engine(config, NullProgress()) if not kernels else _build_for(config, kernels)
    num_head_parameters = model.vocab_size * model.hidden_size
    return engine, {
        "kernels": engine.info.kernels,
        "dtype": engine.info.dtype,
        "kv_cache_dtype": engine.info.kv_cache_dtype,
        "weight_bytes": float(engine.info.weight_bytes),
        "kv_token_bytes": engine.info.kv_cache_bytes / (engine.info.num_blocks * engine.info.block_size),
        # an embedding that is not the head as well is only looked up, row by row
        "block_parameters": float(model.num_parameters - num_head_parameters * (1 if model.has_tied_embeddings else 2)),
    }


def _build_for(config: EngineConfig, kernels: str) -> Engine:
    """What ``engine.factory`` builds, with an instruction set named instead of chosen: there is no setting for it."""
    info = build_engine(config, NullProgress()).info
    path = Path(config.model)
    checkpoint = open_checkpoint(path)
    model = parse_model_config(checkpoint)
    choice = weight_choice(config.dtype)
    threads = num_threads(config)
    packed = pack_model(checkpoint, model, choice, threads, lambda done, total: None)
    program = NativeProgram.build(model, packed.matrices, packed.vectors, kernels)
    sizes = runtime_sizes(config, info.num_blocks, info.max_model_len, threads)
    executor = NativeExecutor(program, sizes, kv_format(config.kv_cache_dtype, choice))
    kv = KVCacheManager(info.num_blocks, config.block_size, config.enable_prefix_caching)
    scheduler = Scheduler(
        kv,
        FcfsPolicy(config.max_num_batched_tokens),
        BatchLimits(config.max_num_seqs, config.max_num_batched_tokens, info.max_model_len),
    )
    texts = TokenizerTexts(load_tokenizer(path, config.tokenizer))
    return Engine(scheduler, kv, executor, texts, WallClock(), msgspec.structs.replace(info, kernels=kernels))


def main(argv: list[str]) -> int:
    model, threads, kernels, fields = argv
    values = json.loads(fields)
    scenario = Scenario(**(values | {"kind": Kind(values["kind"])}))
    length = max(scenario.prompt, scenario.depth, WARM_UP_TOKENS[0]) + scenario.output + NUM_SPARE_TOKENS
    # writing the cache of packed weights would take memory's time from what is measured
    config = EngineConfig(model=model, threads=int(threads), max_model_len=length, compile_cache=False)
    engine, facts = build(config, kernels)
    values = Measurer(engine, engine.info.vocab_size).measure(scenario)
    engine.close()
    print(json.dumps({"values": values, "facts": facts}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
