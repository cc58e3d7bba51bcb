"""Where a step of the native engine spends its time, operation by operation.

Runs the program itself, without scheduler, sampling or text. A step's time is the fastest of several rounds, taken
operation by operation, because what others do on the machine only ever adds; the medians beside it say how much
it added. What no operation accounts for is in ``between``: checks, angles, the call itself, and what no single round
had fastest everywhere.

    python benchmarks/profile_step.py MODEL                    every case
    python benchmarks/profile_step.py MODEL --cases decode prefill_512 --json out.json

``MODEL`` is a weights file or a compiled folder. ``GB/s`` are packed weights read, ``GOP/s`` multiplications and
additions, of one operation or of all of its kind together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from contenders.machine import cpu_name
from numpy.typing import NDArray

from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.reference import cache_folder
from headrace.core.compiled_files import is_compiled
from headrace.core.forward_batch import ForwardBatch
from headrace.executor.kv_format import kv_format
from headrace.executor.native_model import build_program, choose_tuning, load_weights
from headrace.model.config_parser import parse_model_config
from headrace.native.compiled import CompiledModel, open_compiled
from headrace.native.host import this_host
from headrace.native.operations import Operation, OpKind
from headrace.native.packing import PackedWeight
from headrace.native.program import NativeProgram, NativeRuntime, RuntimeSizes

BLOCK_SIZE = 16
MAX_TOKENS = 512
MAX_SEQUENCES = 64
MAX_CONTEXT = 2048


@dataclass(frozen=True)
class Case:
    """Sequences that hold ``context`` tokens already and compute ``chunk`` more each, so many steps in a row."""

    sequences: int
    context: int
    chunk: int
    num_steps: int

    @property
    def num_tokens(self) -> int:
        return self.sequences * self.chunk * self.num_steps

    @property
    def final_context(self) -> int:
        return self.context + self.chunk * self.num_steps


CASES = {
    "decode": Case(sequences=1, context=16, chunk=1, num_steps=16),
    "decode_at_1400": Case(sequences=1, context=1400, chunk=1, num_steps=16),
    "decode_64": Case(sequences=64, context=128, chunk=1, num_steps=4),
    "prefill_512": Case(sequences=1, context=0, chunk=512, num_steps=1),
    "prefill_2048": Case(sequences=1, context=0, chunk=512, num_steps=4),
}


@dataclass(frozen=True)
class Line:
    """One kind of operation; milliseconds per step."""

    operation: str
    count: int
    fastest_ms: float
    median_ms: float
    gb_s: float = 0.0
    gop_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """One case; ``fastest_ms`` and ``median_ms`` are of a whole step, head included."""

    case: str
    fastest_ms: float
    median_ms: float
    tokens_per_s: float
    lines: tuple[Line, ...]


def load(path: Path, threads: int, kv_cache_dtype: str) -> tuple[NativeProgram, dict[str, PackedWeight], NativeRuntime]:
    """A program with a runtime that is large enough for every case."""
    source = open_compiled(path) if is_compiled(path) else open_checkpoint(path)
    model = source.manifest.model if isinstance(source, CompiledModel) else parse_model_config(source)
    weights = load_weights(source, model, "auto", threads, lambda done, total: None)
    program = build_program(model, weights, choose_tuning(weights, this_host(), threads, cache_folder()))
    sizes = RuntimeSizes(
        num_blocks=max(case.sequences * blocks_of(case) for case in CASES.values()),
        block_size=BLOCK_SIZE,
        max_tokens=MAX_TOKENS,
        max_sequences=MAX_SEQUENCES,
        max_context=MAX_CONTEXT,
        num_threads=threads,
    )
    runtime = NativeRuntime(program, sizes, kv_format(kv_cache_dtype, weights.choice))
    return program, dict(weights.packed.matrices), runtime


def blocks_of(case: Case) -> int:
    return -(-case.final_context // BLOCK_SIZE)


def batches(case: Case, context: int, chunk: int, num_steps: int, vocab_size: int) -> Iterator[ForwardBatch]:
    """``num_steps`` steps from ``context`` on; each sequence's blocks lie side by side."""
    rng = np.random.default_rng(0)
    count = case.sequences
    tables = np.arange(count * blocks_of(case), dtype=np.int32).reshape(count, -1)
    for step in range(num_steps):
        start = context + step * chunk
        positions = np.tile(np.arange(start, start + chunk, dtype=np.int32), count)
        sequence_of_token = np.repeat(np.arange(count), chunk)
        slots = tables[sequence_of_token, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        query_start = np.arange(0, count * chunk + 1, chunk, dtype=np.int32)
        yield ForwardBatch(
            input_ids=rng.integers(vocab_size // 16, vocab_size // 2, count * chunk, np.int32),
            positions=positions,
            slot_mapping=slots.astype(np.int32),
            query_start=query_start,
            seq_lens=np.full(count, start + chunk, np.int32),
            block_tables=tables,
            logit_rows=query_start[1:] - np.int32(1),
            num_wanted=np.ones(count, np.int32),
        )


def fill_context(runtime: NativeRuntime, case: Case, vocab_size: int) -> None:
    """Compute the tokens that the case's sequences hold before it begins."""
    chunk = next(size for size in range(MAX_TOKENS // case.sequences, 0, -1) if case.context % size == 0)
    for batch in batches(case, 0, chunk, case.context // chunk, vocab_size):
        runtime.forward(batch)


def profile(
    name: str, program: NativeProgram, weights: dict[str, PackedWeight], runtime: NativeRuntime, rounds: int
) -> Profile:
    case, vocab_size = CASES[name], program.config.vocab_size
    fill_context(runtime, case, vocab_size)
    steps = list(batches(case, case.context, case.chunk, case.num_steps, vocab_size))
    walls = [[seconds_of(lambda batch=batch: run(runtime, batch)) for batch in steps] for _ in range(rounds)]
    times = [[operation_times(runtime, batch) for batch in steps] for _ in range(rounds)]
    wall, operations = np.array(walls), np.array(times)  # [rounds, steps], [rounds, steps, operations]
    fastest_s = float(wall.min(0).mean())
    return Profile(
        case=name,
        fastest_ms=1e3 * fastest_s,
        median_ms=1e3 * float(np.median(wall, 0).mean()),
        tokens_per_s=case.num_tokens / case.num_steps / fastest_s,
        lines=lines(case, program, weights, operations, fastest_s),
    )


def run(runtime: NativeRuntime, batch: ForwardBatch) -> None:
    runtime.forward(batch)
    runtime.logits(batch.logit_rows)


def seconds_of(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def operation_times(runtime: NativeRuntime, batch: ForwardBatch) -> list[float]:
    runtime.start_timing()
    run(runtime, batch)
    return runtime.operation_seconds()


def lines(
    case: Case,
    program: NativeProgram,
    weights: dict[str, PackedWeight],
    seconds: NDArray[np.float64],
    fastest_s: float,
) -> tuple[Line, ...]:
    """Operations of one kind together, the dearest first; ``seconds`` is [rounds, steps, operations]."""
    listing = program.listing
    operations = listing.operations
    rows = [case.sequences * case.chunk] * len(listing.body) + [case.sequences] * len(listing.tail + listing.head)
    fastest, median = seconds.min(0).mean(0), np.median(seconds, 0).mean(0)
    found = []
    for label in dict.fromkeys(map(label_of, operations)):
        mine = [index for index, operation in enumerate(operations) if label_of(operation) == label]
        read = sum(weight_bytes(operations[i], weights) for i in mine)
        computed = sum(rows[i] * operations_of(operations[i], weights) for i in mine)
        spent = float(fastest[mine].sum())
        found.append(
            Line(
                operation=label,
                count=len(mine),
                fastest_ms=1e3 * spent,
                median_ms=1e3 * float(median[mine].sum()),
                gb_s=read / spent * 1e-9,
                gop_s=computed / spent * 1e-9,
            )
        )
    between = 1e3 * (fastest_s - float(fastest.sum()))
    found.append(Line("between", 1, between, between))
    return tuple(sorted(found, key=lambda line: -line.fastest_ms))


def label_of(operation: Operation) -> str:
    if operation.kind is not OpKind.MATMUL:
        return operation.kind.name.lower()
    assert operation.matrix is not None
    return "matmul " + operation.matrix.rpartition(".")[2]


def weight_bytes(operation: Operation, weights: dict[str, PackedWeight]) -> int:
    is_product = operation.kind is OpKind.MATMUL and operation.matrix is not None
    return weights[operation.matrix or ""].data.nbytes if is_product else 0


def operations_of(operation: Operation, weights: dict[str, PackedWeight]) -> int:
    """Multiplications and additions for one row."""
    if operation.kind is not OpKind.MATMUL or operation.matrix is None:
        return 0
    matrix = weights[operation.matrix]
    return 2 * matrix.num_rows * matrix.num_columns


def print_profile(measured: Profile) -> None:
    print(
        f"\n{measured.case}: {measured.fastest_ms:.3f} ms a step (median {measured.median_ms:.3f}), "
        f"{measured.tokens_per_s:.0f} tokens/s"
    )
    print(f"  {'operation':<22}{'count':>6}{'ms':>10}{'median':>10}{'us each':>10}{'share':>8}{'GB/s':>8}{'GOP/s':>8}")
    for line in measured.lines:
        rates = f"{line.gb_s:>8.1f}{line.gop_s:>8.0f}" if line.gb_s else ""
        print(
            f"  {line.operation:<22}{line.count:>6}{line.fastest_ms:>10.3f}{line.median_ms:>10.3f}"
            f"{1e3 * line.fastest_ms / line.count:>10.2f}{line.fastest_ms / measured.fastest_ms:>8.1%}{rates}"
        )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the operations of the native engine's steps.")
    parser.add_argument("model", type=Path, help="a weights file or a compiled folder")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv-cache-dtype", default="auto", help="type of the cached keys and values")
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    program, weights, runtime = load(arguments.model, arguments.threads, arguments.kv_cache_dtype)
    print(f"{arguments.model.name}, kernels {program.kernels}, {arguments.threads} threads, {cpu_name()}")
    profiles = []
    for name in arguments.cases:
        profiles.append(profile(name, program, weights, runtime, arguments.rounds))
        print_profile(profiles[-1])
    if arguments.json is not None:
        report = {
            "model": arguments.model.name,
            "kernels": program.kernels,
            "threads": arguments.threads,
            "cpu": cpu_name(),
            "profiles": [asdict(measured) for measured in profiles],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
