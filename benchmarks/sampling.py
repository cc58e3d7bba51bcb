"""What choosing a token costs natively, per row of logits and on one thread.

Each line is one way to sample; each column a shape of logits: likelihoods that fall with the rank as a language
model's do (``zipf``), and nearly equal ones (``flat``), where filters keep most of the vocabulary. Times are medians
over interleaved rounds and include the Python that flattens parameters. ``--torch`` adds the reference sampler
and the ratio to it, and counts tokens in which the two differ.

    python benchmarks/sampling.py                                         a vocabulary of 49,152
    python benchmarks/sampling.py --vocab 262144 --torch --json out.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.sampling import SamplingParams
from headrace.core.step import SampleSpec
from headrace.native import _native
from headrace.native.sampler import NativeSampler

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "top_k 40": {"temperature": 0.8, "top_k": 40},
    "top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top_k 40, top_p 0.95": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "top_k 5000, top_p 0.95": {"temperature": 0.8, "top_k": 5000, "top_p": 0.95},
    "penalties, greedy": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "greedy, 20 logprobs": {"temperature": 0.0, "logprobs": 20},
}
NUM_HISTORY_TOKENS = 500
NUM_WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Measurement:
    """Microseconds per row; ``spread`` is the distance of the quartiles over the median."""

    way: str
    logits: str
    native_us: float
    native_spread: float
    torch_us: float | None = None
    num_different: int | None = None


def make_logits(kind: str, num_rows: int, vocab_size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(num_rows, vocab_size))
    if kind == "flat":
        return (0.05 * noise).astype(np.float32)
    ranks = rng.permuted(np.broadcast_to(np.arange(2, vocab_size + 2), noise.shape), axis=1)
    return np.ascontiguousarray(-1.5 * np.log(ranks) + 0.3 * noise, dtype=np.float32)


def make_specs(params: dict[str, Any], num_rows: int, vocab_size: int) -> list[SampleSpec]:
    sampling = SamplingParams(**params)
    history = np.random.default_rng(1).integers(0, vocab_size, NUM_HISTORY_TOKENS).tolist()
    return [
        SampleSpec(
            sampling, seed=row, position=row, token_ids=history if sampling.needs_history else (), num_prompt_tokens=100
        )
        for row in range(num_rows)
    ]


def time_rounds(calls: list[Callable[[], object]], num_rounds: int) -> list[list[float]]:
    """Seconds of each call in each round, all calls once a round."""
    times: list[list[float]] = [[] for _ in calls]
    for round_ in range(num_rounds + NUM_WARM_UP_ROUNDS):
        for index, call in enumerate(calls):
            started = time.perf_counter()
            call()
            if round_ >= NUM_WARM_UP_ROUNDS:
                times[index].append(time.perf_counter() - started)
    return times


def torch_sample(vocab_size: int, logits: np.ndarray) -> Callable[[list[SampleSpec]], list[int]]:
    """The reference sampler over ``logits``, on one thread."""
    import torch

    from headrace.model.sampler import Sampler

    torch.set_num_threads(1)
    sampler, tensor = Sampler(vocab_size), torch.from_numpy(logits)
    return lambda specs: sampler.sample(tensor, specs, None).token_ids


def measure(args: argparse.Namespace, kind: str) -> list[Measurement]:
    logits = make_logits(kind, args.rows, args.vocab)
    sampler = NativeSampler(args.vocab, _native.ThreadPool(1))
    specs = {way: make_specs(params, args.rows, args.vocab) for way, params in WAYS.items()}
    calls = [lambda s=s: sampler.sample(logits, s, None).token_ids for s in specs.values()]
    tokens = {way: call() for way, call in zip(specs, calls, strict=True)}
    num_different: dict[str, int] = {}
    if args.torch:
        reference = torch_sample(args.vocab, logits)
        for way, some in specs.items():
            num_different[way] = sum(a != b for a, b in zip(reference(some), tokens[way], strict=True))
        calls += [lambda s=s: reference(s) for s in specs.values()]
    per_row = [[1e6 * t / args.rows for t in times] for times in time_rounds(calls, args.rounds)]
    measured = []
    for index, way in enumerate(specs):
        low, middle, high = statistics.quantiles(per_row[index], n=4)
        torch_us = statistics.median(per_row[index + len(specs)]) if args.torch else None
        measured.append(Measurement(way, kind, middle, (high - low) / middle, torch_us, num_different.get(way)))
    return measured


def show(measured: list[Measurement]) -> None:
    print(f"{'':24}{'logits':>8}{'us/row':>10}{'spread':>9}{'torch':>10}{'ratio':>8}{'differ':>8}")
    for m in measured:
        line = f"{m.way:24}{m.logits:>8}{m.native_us:10.1f}{m.native_spread:9.0%}"
        if m.torch_us is not None:
            line += f"{m.torch_us:10.1f}{m.torch_us / m.native_us:8.1f}{m.num_different:8}"
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--rows", type=int, default=16, help="rows per call")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--torch", action="store_true", help="also run the reference sampler")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    print(f"vocabulary {args.vocab}, {args.rows} rows a call, kernels {_native.best_kernels()}, {platform.machine()}")
    measured = [m for kind in ("zipf", "flat") for m in measure(args, kind)]
    show(measured)
    if args.json:
        facts = {"vocab": args.vocab, "rows": args.rows, "rounds": args.rounds, "kernels": _native.best_kernels()}
        args.json.write_text(json.dumps({**facts, "measurements": [asdict(m) for m in measured]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
