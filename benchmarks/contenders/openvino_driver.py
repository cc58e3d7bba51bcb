"""Measures OpenVINO GenAI by the protocol of ``contenders.commands``; run by an interpreter that has it.

Its pipelines time themselves: time to first token and mean time per further token.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai


def random_prompt(rng: random.Random, num_tokens: int) -> ov.Tensor:
    return ov.Tensor(np.array([rng.choices(range(1000, 40000), k=num_tokens)], np.int64))


def greedy(num_output_tokens: int) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens = num_output_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def measure_alone(model: str, threads: int, num_prompt_tokens: int, num_output_tokens: int) -> genai.PerfMetrics:
    """Metrics of the second of two runs: the first compiles and allocates."""
    rng = random.Random(1)
    pipeline = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    for _ in range(2):
        prompt = random_prompt(rng, num_prompt_tokens)
        mask = ov.Tensor(np.ones((1, num_prompt_tokens), np.int64))
        result = pipeline.generate(genai.TokenizedInputs(prompt, mask), greedy(num_output_tokens))
    return result.perf_metrics


def measure_batch(model: str, threads: int, num_prompt_tokens: int, num_output_tokens: int, sequences: int) -> float:
    """Seconds of all sequences together, through the continuous batching pipeline."""
    rng = random.Random(1)
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    pipeline.generate([random_prompt(rng, num_prompt_tokens)], [greedy(2)])
    prompts = [random_prompt(rng, num_prompt_tokens) for _ in range(sequences)]
    started = time.perf_counter()
    pipeline.generate(prompts, [greedy(num_output_tokens)] * sequences)
    return time.perf_counter() - started


def main() -> None:
    model, kind = sys.argv[1], sys.argv[3]
    threads, prompt, output, sequences, depth = (int(sys.argv[i]) for i in (2, 4, 5, 6, 7))
    if kind == "decode":
        tokens_per_s = 1e3 / measure_alone(model, threads, max(1, depth), output + 1).get_tpot().mean
    elif kind == "prefill":
        tokens_per_s = prompt * 1e3 / measure_alone(model, threads, prompt, 2).get_ttft().mean
    else:
        tokens_per_s = sequences * output / measure_batch(model, threads, prompt, output, sequences)
    print(tokens_per_s)


if __name__ == "__main__":
    main()
