"""Swapping against recomputing, on the real engine.

Prefix: prompts are computed, pushed out of the KV cache by others, and asked for again; their prefill is timed with no
tier below the KV cache (computed again), with a host tier, and with a disk tier. Preemption: more sequences decode than
the KV cache holds, without a prefix cache, so that victims lose everything; the whole run is timed with victims
computed again and with victims swapped. CPU time is shown beside the time on the wall: with one thread they are the
same on an idle machine, and CPU time still means something on a busy one.

    python benchmarks/swap.py                        the default model
    python benchmarks/swap.py --prompt-tokens 1024 --threads 1 --json out.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.progress import NullProgress
from headrace.core.request import FinishReason, Request
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine

NUM_PROMPTS = 3
NUM_SEQUENCES = 4


@dataclass(frozen=True)
class PrefixRow:
    """Seconds from a repeated prompt's arrival to its first token, and how much of it was found."""

    tiers: str
    ttft_ms: float
    ttft_cpu_ms: float
    num_cached_tokens: float
    num_restored_blocks: int
    num_fetched_blocks: int


@dataclass(frozen=True)
class PreemptionRow:
    """A run with more sequences than fit."""

    victims: str
    run_s: float
    run_cpu_s: float
    num_preemptions: int
    num_computed_tokens: int
    num_restored_blocks: int


def request(name: str, salt: int, num_tokens: int, max_tokens: int) -> Request:
    prompt = [3 + (salt * 7919 + index * (31 + salt)) % 240 for index in range(num_tokens)]
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        seed=1,
        arrival_time=time.monotonic(),
    )


@dataclass(frozen=True)
class FirstToken:
    """How long it took, and how much of the prompt was cached."""

    seconds: float
    cpu_s: float
    num_cached: int


def first_token(engine: Engine, asked: Request) -> FirstToken:
    """The first token of a request that is alone; runs it to its end."""
    started, cpu_started = time.perf_counter(), time.process_time()
    engine.submit(asked)
    found: FirstToken | None = None
    while engine.has_work:
        for output in engine.step():
            if output.token_ids and found is None:
                seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
                found = FirstToken(seconds, cpu_s, output.usage.num_cached_tokens)
    assert found is not None
    return found


def block_bytes(config: EngineConfig) -> int:
    engine = build_engine(config, NullProgress())
    engine.close()
    return engine.info.kv_cache_bytes // engine.info.num_blocks


def prefix_row(config: EngineConfig, tiers: str, num_tokens: int) -> PrefixRow:
    engine = build_engine(config, NullProgress())
    for salt in range(NUM_PROMPTS):
        first_token(engine, request(f"cold{salt}", salt, num_tokens, 2))
    for salt in range(10, 10 + 2 * NUM_PROMPTS):  # these push the first out of the KV cache, and out of the host tier
        first_token(engine, request(f"other{salt}", salt, num_tokens, 2))
    found = [first_token(engine, request(f"again{salt}", salt, num_tokens, 2)) for salt in range(NUM_PROMPTS)]
    use = engine.stats().tiers
    engine.close()
    return PrefixRow(
        tiers=tiers,
        ttft_ms=statistics.median(first.seconds for first in found) * 1e3,
        ttft_cpu_ms=statistics.median(first.cpu_s for first in found) * 1e3,
        num_cached_tokens=statistics.mean(first.num_cached for first in found),
        num_restored_blocks=0 if use is None else use.num_restored,
        num_fetched_blocks=0 if use is None else use.num_fetched,
    )


def preemption_row(config: EngineConfig, victims: str, num_tokens: int) -> PreemptionRow:
    engine = build_engine(config, NullProgress())
    for number in range(NUM_SEQUENCES):
        engine.submit(request(f"r{number}", number, num_tokens, num_tokens // 4))
    started, cpu_started, num_computed = time.perf_counter(), time.process_time(), 0
    while engine.has_work:
        outputs = engine.step()
        assert all(output.finish_reason in (None, FinishReason.LENGTH) for output in outputs)
        num_computed += engine.stats().num_step_tokens
    stats = engine.stats()
    run_s, run_cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    engine.close()
    return PreemptionRow(
        victims=victims,
        run_s=run_s,
        run_cpu_s=run_cpu_s,
        num_preemptions=stats.num_preemptions,
        num_computed_tokens=num_computed,
        num_restored_blocks=0 if stats.tiers is None else stats.tiers.num_restored,
    )


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[list[PrefixRow], list[PreemptionRow]]:
    num_tokens = arguments.prompt_tokens
    base = EngineConfig(
        model=arguments.model,
        threads=arguments.threads,
        max_model_len=2 * num_tokens,
        scheduling_policy="fcfs",  # which keeps no room free for what is still to come, and so preempts
    )
    size = block_bytes(base)
    blocks_per_prompt = -(-(num_tokens + 2) // base.block_size)
    small = msgspec.structs.replace(base, kv_cache_bytes=(2 * blocks_per_prompt + 4) * size)
    large_host, small_host = 16 * blocks_per_prompt * size, 2 * blocks_per_prompt * size
    host = msgspec.structs.replace(small, swap_space_bytes=large_host)
    disk = msgspec.structs.replace(
        small, swap_space_bytes=small_host, disk_kv_cache=str(folder / "kv"), disk_kv_cache_bytes=large_host
    )
    prefixes = [
        prefix_row(small, "none", num_tokens),
        prefix_row(host, "host", num_tokens),
        prefix_row(disk, "host and disk", num_tokens),
    ]
    # room for all prompts, and for half of what comes after them
    num_blocks = NUM_SEQUENCES * (num_tokens // base.block_size)
    num_blocks += NUM_SEQUENCES * (num_tokens // 4 // base.block_size) // 2
    alone = msgspec.structs.replace(
        small, enable_prefix_caching=False, max_num_seqs=NUM_SEQUENCES, kv_cache_bytes=num_blocks * size
    )
    swapping = msgspec.structs.replace(alone, swap_space_bytes=large_host)
    preemptions = [
        preemption_row(alone, "computed again", num_tokens),
        preemption_row(swapping, "swapped", num_tokens),
    ]
    return prefixes, preemptions


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Swapping against recomputing, on the real engine.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        prefixes, preemptions = measure(arguments, Path(folder))
    print(f"a prompt of {arguments.prompt_tokens} tokens that had to leave the KV cache, asked for again")
    print("tiers below    first token ms   CPU ms  cached tokens  restored blocks  fetched blocks")
    for row in prefixes:
        times = f"{row.tiers:13}  {row.ttft_ms:14.1f}  {row.ttft_cpu_ms:7.1f}"
        blocks = f"{row.num_restored_blocks:15d}  {row.num_fetched_blocks:14d}"
        print(f"{times}  {row.num_cached_tokens:13.0f}  {blocks}")
    print("\nmore sequences than the KV cache holds")
    print("victims         run s  CPU s  preemptions  tokens computed  restored blocks")
    for victim in preemptions:
        print(
            f"{victim.victims:14}  {victim.run_s:5.2f}  {victim.run_cpu_s:5.2f}  {victim.num_preemptions:11d}  "
            f"{victim.num_computed_tokens:15d}  {victim.num_restored_blocks:15d}"
        )
    if arguments.json:
        report = {
            "model": arguments.model,
            "prompt_tokens": arguments.prompt_tokens,
            "prefixes": [asdict(row) for row in prefixes],
            "preemptions": [asdict(row) for row in preemptions],
        }
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
