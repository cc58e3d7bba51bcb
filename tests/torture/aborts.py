"""Ends requests at random moments by the ten thousand; nothing may be left of any of them.

The whole engine over a tiny random model, driven step by step: prompts that share prefixes, several answers to one,
grammars that are still being compiled, more work than the KV cache holds (so that sequences are preempted and swapped
out), and between any two steps aborts of whatever is there, queued, half computed, running, swapped out or finished.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.config import EngineConfig
from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.progress import NullProgress
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine
from tests.tiny_model import write_tiny_model
from tests.torture.figures import print_report

MOST_LIVE = 24
SETTINGS = {
    "max_model_len": 256,
    "block_size": 16,
    "kv_cache_bytes": 32 * 16 * 512,
    "kv_cache_dtype": "float32",
    "swap_space_bytes": 24 * 16 * 512,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
    "max_num_queued_reqs": 64,
    "threads": 1,
    "compile_cache": False,
}
"""32 blocks of 16 tokens, for 24 requests that may grow to 100 tokens and more."""


@dataclass
class AbortReport:
    """What was done and what was found; all of ``faults`` are leaks or broken promises."""

    num_aborts: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    num_preemptions: int = 0
    num_swapped_out: int = 0
    num_more_objects: int = 0
    faults: list[str] = field(default_factory=list)


class Aborter:
    """Drives one engine. ``num_aborts`` counts sequences that an abort really ended."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.report = AbortReport()
        self._engine = engine
        self._rng = random.Random(seed)
        self._open: dict[str, set[int]] = {}
        self._num_requests = 0

    @property
    def num_objects(self) -> int:
        """Python objects there are, garbage not counted."""
        gc.collect()
        return len(gc.get_objects())

    def run(self, num_aborts: int) -> None:
        """Until so many were aborted; the engine is idle afterwards."""
        while self.report.ends["abort"] < num_aborts:
            self._turn()
        for request_id in list(self._open):
            self._engine.abort(request_id)
        for _ in range(2):
            self._take(self._engine.step())
        self._check_idle()

    def _turn(self) -> None:
        rng = self._rng
        while len(self._open) < MOST_LIVE and rng.random() < 0.8:
            self._submit()
        for _ in range(rng.choice((0, 0, 0, 1, 1, 1, 8))):
            self._abort_one()
        self._take(self._engine.step())

    def _submit(self) -> None:
        request = self._request()
        self._num_requests += 1
        self._open[request.request_id] = set(range(request.sampling.n))
        self._engine.submit(request)

    def _request(self) -> Request:
        rng = self._rng
        start = rng.choice((5, 6, 7))
        constraint = Constraint(ConstraintKind.CHOICE, f'["yes {rng.randrange(50)}", "no"]')
        return Request(
            request_id=f"r{self._num_requests}",
            prompt_token_ids=[start + i % 40 for i in range(rng.choice((1, 9, 33, 100)))],
            sampling=SamplingParams(n=rng.choice((1, 1, 1, 4)), max_tokens=rng.choice((1, 8, 60)), ignore_eos=True),
            seed=rng.randrange(1 << 30),
            arrival_time=0.0,
            constraint=constraint if rng.random() < 0.05 else None,
        )

    def _abort_one(self) -> None:
        """One that is there, mostly; or one that has ended, or never was."""
        if self._open and self._rng.random() < 0.9:
            self._engine.abort(self._rng.choice(list(self._open)))
        else:
            self._engine.abort(f"r{self._rng.randrange(self._num_requests + 2)}")

    def _take(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            if output.finish_reason is None:
                continue
            self.report.ends[output.finish_reason.value] += 1
            if output.finish_reason is FinishReason.ERROR:
                self.report.faults.append(f"{output.request_id} failed: {output.error}")
            still_open = self._open.get(output.request_id, set())
            if output.index not in still_open:
                self.report.faults.append(f"{output.request_id}#{output.index} ended twice")
                continue
            still_open.remove(output.index)
            if not still_open:
                del self._open[output.request_id]

    def _check_idle(self) -> None:
        """Two steps after the last abort every block is free or cached, and nobody is remembered."""
        stats, faults = self._engine.stats(), self.report.faults
        if self._open:
            faults.append(f"never ended: {sorted(self._open)[:10]}")
        if self._engine.has_work:
            faults.append("the engine still has work")
        num_used = stats.num_blocks - stats.num_free_blocks - stats.num_cached_blocks
        if num_used:
            faults.append(f"{num_used} KV blocks are still in use")
        faults += self._engine._kv.check()
        self.report.num_aborts = self.report.ends["abort"]
        self.report.num_preemptions = stats.num_preemptions
        self.report.num_swapped_out = 0 if stats.tiers is None else stats.tiers.num_offloaded


def run_aborts(num_aborts: int, folder: Path, seed: int = 0) -> AbortReport:
    """Abort so many sequences of the tiny model in ``folder``; after the first fifth caches and memories are full."""
    engine = build_engine(EngineConfig(model=str(folder), **SETTINGS), NullProgress())  # type: ignore[arg-type]
    aborter = Aborter(engine, seed)
    try:
        aborter.run(num_aborts // 5)
        num_objects = aborter.num_objects
        aborter.run(num_aborts)
        aborter.report.num_more_objects = aborter.num_objects - num_objects
    finally:
        engine.close()
    return aborter.report


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture aborts", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="sequences to abort")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = run_aborts(arguments.count, write_tiny_model(Path(folder)), arguments.seed)
    figures = {
        "aborted": found.num_aborts,
        **{f"ended with {name}": count for name, count in sorted(found.ends.items()) if name != "abort"},
        "preemptions": found.num_preemptions,
        "blocks swapped out": found.num_swapped_out,
        "more Python objects than after a fifth": found.num_more_objects,
        "faults": len(found.faults),
    }
    print("\n".join(found.faults[:20]))
    return print_report(figures, arguments.json, is_good=not found.faults)
