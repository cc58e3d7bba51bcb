"""What the prefix cache costs: finding a long prompt in a full tree, and the calls of every step.

Two trees hold the same prompt among unrelated ones. In ``edge`` nobody has parted from it, so it is one node;
in ``path`` others have parted from it after every block, so it is as many nodes as blocks, the most a match
can meet. The bound for either match is 2 ms for 32k tokens among 10k nodes.

    python benchmarks/prefix_match.py
    python benchmarks/prefix_match.py --tokens 131072 --nodes 50000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence

VOCAB_SIZE = 150_000


@dataclass(frozen=True)
class Figure:
    """Time of one call in microseconds."""

    tree: str
    call: str
    least_us: float
    median_us: float


class Workbench:
    """A KV cache filled for one kind of tree, and the sequences that come to it."""

    def __init__(self, num_tokens: int, num_nodes: int, block_size: int) -> None:
        self.rng = random.Random(0)
        self.block_size = block_size
        self.prompt = self.random_tokens(num_tokens)
        num_blocks = 2 * (num_tokens // block_size + num_nodes)
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=True)
        self.num_sequences = 0
        self.num_nodes = num_nodes

    def random_tokens(self, num_tokens: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)]

    def sequence(self, token_ids: list[int]) -> Sequence:
        self.num_sequences += 1
        request = Request(
            request_id=str(self.num_sequences),
            prompt_token_ids=token_ids,
            sampling=SamplingParams(),
            seed=0,
            arrival_time=0.0,
        )
        return Sequence(self.num_sequences, request, 0, frozenset())

    def run(self, token_ids: list[int]) -> None:
        """Leave a prompt in the cache."""
        seq = self.sequence(token_ids)
        self.kv.acquire(seq, seq.num_tokens - 1)
        self.compute(seq, seq.num_pending_tokens)
        self.kv.release(seq)

    def compute(self, seq: Sequence, num_tokens: int) -> None:
        if not self.kv.extend(seq, num_tokens):
            raise RuntimeError(f"no room for {num_tokens} tokens of {seq}")
        seq.num_computed_tokens += num_tokens
        self.kv.commit(seq)

    def fill(self, tree: str) -> None:
        """Cache the prompt as one edge or as a path of one-block nodes, and unrelated blocks up to the node count."""
        self.run(self.prompt)
        num_prompt_nodes = 1
        if tree == "path":
            num_prompt_nodes = len(self.prompt) // self.block_size
            for end in range(len(self.prompt) - self.block_size, 0, -self.block_size):
                seq = self.sequence(self.prompt[: end + 1])
                self.kv.acquire(seq, end)
                self.kv.release(seq)
        for _ in range(self.num_nodes - num_prompt_nodes):
            self.run(self.random_tokens(self.block_size))


def measure(function: Callable[[], object], num_repeats: int, num_calls: int = 1) -> tuple[float, float]:
    """Least and median microseconds per call."""
    durations = []
    for _ in range(num_repeats):
        start = time.perf_counter()
        for _ in range(num_calls):
            function()
        durations.append((time.perf_counter() - start) / num_calls * 1e6)
    return min(durations), statistics.median(durations)


def figures(bench: Workbench, tree: str, num_repeats: int) -> list[Figure]:
    bench.fill(tree)
    kv = bench.kv
    newcomer = bench.sequence([*bench.prompt, 0])
    stranger = bench.sequence(bench.random_tokens(len(bench.prompt)))
    waiting = bench.sequence([*bench.prompt, *bench.random_tokens(2 * bench.block_size)])
    running = bench.sequence([*waiting.token_ids])

    def admit(seq: Sequence) -> None:
        kv.acquire(seq, seq.num_tokens - 1)
        kv.release(seq)

    rows = [
        ("acquire and release, all cached", measure(lambda: admit(newcomer), num_repeats)),
        ("acquire and release, nothing cached", measure(lambda: admit(stranger), num_repeats)),
    ]
    kv.acquire(running, running.num_tokens - 1)
    if not kv.is_being_computed(waiting):
        raise RuntimeError("the waiting sequence should have been told to wait")
    rows.append(("is_being_computed, all cached", measure(lambda: kv.is_being_computed(waiting), num_repeats)))
    bench.compute(running, running.num_pending_tokens)
    running.token_ids.append(0)
    rows += [
        ("extend, room left in the last block", measure(lambda: kv.extend(running, 1), num_repeats, num_calls=1000)),
        ("commit, no block filled", measure(lambda: kv.commit(running), num_repeats, num_calls=1000)),
        ("commit, one block filled", measure(lambda: decode_a_block(bench, running), num_repeats)),
        ("check", measure(kv.check, 5)),
    ]
    kv.release(running)
    num_evicted = kv.num_evictable_blocks
    least_us, _ = measure(kv.clear_prefix_cache, 1)
    rows.append(("evict one block", (least_us / num_evicted, least_us / num_evicted)))
    return [Figure(tree, call, least, median) for call, (least, median) in rows]


def decode_a_block(bench: Workbench, seq: Sequence) -> None:
    """Room for and commit of as many tokens as a block holds, in one go."""
    seq.token_ids.extend([1] * bench.block_size)
    bench.compute(seq, bench.block_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_768, help="length of the prompt that is matched")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes of the tree")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block")
    parser.add_argument("--repeats", type=int, default=100, help="measurements per figure")
    parser.add_argument("--json", type=Path, default=None, help="also write the numbers to this file")
    arguments = parser.parse_args()

    results: list[Figure] = []
    for tree in ("edge", "path"):
        bench = Workbench(arguments.tokens, arguments.nodes, arguments.block_size)
        results += figures(bench, tree, arguments.repeats)

    print(f"{arguments.tokens} tokens, {arguments.nodes} nodes, blocks of {arguments.block_size}")
    print(f"{'tree':<6}{'call':<38}{'least us':>12}{'median us':>12}")
    for row in results:
        print(f"{row.tree:<6}{row.call:<38}{row.least_us:>12.2f}{row.median_us:>12.2f}")
    if arguments.json is not None:
        report = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "tokens": arguments.tokens,
            "nodes": arguments.nodes,
            "block_size": arguments.block_size,
            "figures": [asdict(row) for row in results],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
