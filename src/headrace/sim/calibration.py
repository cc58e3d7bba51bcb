"""Measuring a machine for the simulator: what steps of the real engine take, everything it does in them included.

Owns which steps are measured and how a profile's parts are told apart: prompts of several lengths, batches of
several sizes, and both again with much context. Any engine will do; the profile's form is ``cpu_profile``'s.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

from headrace.core.clock import Clock
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.scheduler.cost_model import chunk_pairs
from headrace.sim.cpu_profile import CpuProfile, Curve

NUM_ROUNDS = 4
"""Every measurement is taken in each round, so that a disturbance of seconds touches all sizes alike."""

NUM_DECODE_STEPS = 12
SHORT_PROMPT = 16
NUM_LONG_DECODES = 4
NUM_PAIRS = 3
NUM_SHORT_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What is measured of an engine: powers of two up to its limits, and chunks of a prompt that fills several steps.

    Where no prompt does, ``num_chunks`` is 0: then no step computes a prompt's tokens without sampling.
    """

    prompts: list[int]
    batches: list[int]
    chunk: int
    num_chunks: int

    @classmethod
    def of(cls, engine: Engine) -> _Sizes:
        info = engine.info
        longest = min(info.max_model_len - NUM_DECODE_STEPS - 8, info.num_kv_tokens // (2 * NUM_LONG_DECODES))
        chunk = min(info.max_num_batched_tokens, longest // 2)
        batch = min(info.max_num_seqs, info.num_kv_tokens // (2 * (SHORT_PROMPT + NUM_DECODE_STEPS + info.block_size)))
        num_chunks = min(longest // chunk, 4) if chunk == info.max_num_batched_tokens else 0
        return cls(_powers(2, chunk), _powers(1, batch), chunk, num_chunks)


@dataclass
class _Times:
    """Measured seconds by what was measured."""

    prompts: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    batches: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    chunks: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    sampling: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    long_batch: list[float] = field(default_factory=list)


class Calibration:
    """One engine being measured; nobody else may use it meanwhile."""

    def __init__(self, engine: Engine, clock: Clock, seed: int = 0) -> None:
        self._engine = engine
        self._clock = clock
        self._rng = random.Random(seed)  # noqa: S311 - only has to be repeatable
        self._ids = itertools.count()
        self._sizes = _Sizes.of(engine)
        self._times = _Times()

    def warm_up(self) -> None:
        """Measure one round and throw it away: the first steps fill caches and fault memory in."""
        self.measure_round()
        self._times = _Times()

    def measure_round(self) -> None:
        """Measure everything once more; ``NUM_ROUNDS`` are enough on a machine with nothing else to do."""
        sizes, times = self._sizes, self._times
        for length in sizes.prompts:
            times.prompts[length].append(self._prompt_time(length))
        times.requests += [self._request_time() for _ in range(NUM_SHORT_REQUESTS)]
        for batch in sizes.batches:
            times.batches[batch] += self._decode_times(batch, SHORT_PROMPT)
        times.long_batch += self._decode_times(self._num_long, self._long_prompt)
        if sizes.num_chunks > 0:
            times.sampling += [self._prompt_time(sizes.chunk) - self._chunk_times(1)[0] for _ in range(NUM_PAIRS)]
            for number, seconds in enumerate(self._chunk_times(sizes.num_chunks)):
                times.chunks[number].append(seconds)

    def profile(self, machine: str) -> CpuProfile:
        """What the rounds so far amount to."""
        info = self._engine.info
        tokens, samples, context_s, pair_s = _solve(self._sizes, self._times)
        return CpuProfile(
            model=info.model,
            machine=machine,
            num_kv_tokens=info.num_kv_tokens,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
            tokens=tokens,
            samples=samples,
            context_s=context_s,
            pair_s=pair_s,
            request_s=max(_typical(self._times.requests), 0.0),
        )

    @property
    def _num_long(self) -> int:
        return min(NUM_LONG_DECODES, self._sizes.batches[-1])

    @property
    def _long_prompt(self) -> int:
        return self._sizes.chunk * max(self._sizes.num_chunks, 1)

    def _prompt_time(self, length: int) -> float:
        """A step that computes a whole prompt and samples."""
        self._submit(length, 2)
        seconds = self._timed_step()
        self._engine.step()  # the end of a request, with what an idle engine does, is not part of a step
        return seconds

    def _request_time(self) -> float:
        """What a request takes besides the one step that computes it: the difference to that step alone."""
        started = self._clock.now()
        self._submit(SHORT_PROMPT, 1)
        self._engine.step()
        whole_s = self._clock.now() - started
        return whole_s - self._prompt_time(SHORT_PROMPT)

    def _chunk_times(self, count: int) -> list[float]:
        """Steps that each compute a chunk of one prompt and sample nothing."""
        self._submit(self._sizes.chunk * count + 8, 1)
        times = [self._timed_step() for _ in range(count)]
        self._engine.step()
        return times

    def _decode_times(self, batch: int, num_prompt_tokens: int) -> list[float]:
        """Steps in which ``batch`` sequences decode, after prompts of so many tokens."""
        request_ids = [self._submit(num_prompt_tokens, NUM_DECODE_STEPS + batch + 8) for _ in range(batch)]
        while (stats := self._engine.stats()).num_step_tokens != batch or stats.num_step_samples != batch:
            self._engine.step()
        times = [self._timed_step() for _ in range(min(NUM_DECODE_STEPS, 8))]
        for request_id in request_ids:
            self._engine.abort(request_id)
        self._engine.step()
        return times

    def _timed_step(self) -> float:
        started = self._clock.now()
        self._engine.step()
        return self._clock.now() - started

    def _submit(self, num_prompt_tokens: int, max_tokens: int) -> str:
        """Queue a request whose prompt nothing is cached of."""
        request_id = f"calibration-{next(self._ids)}"
        vocab_size = self._engine.info.vocab_size
        self._engine.submit(
            Request(
                request_id=request_id,
                prompt_token_ids=[self._rng.randrange(vocab_size) for _ in range(num_prompt_tokens)],
                sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0),
                seed=0,
                arrival_time=self._clock.now(),
                cache_salt=request_id,
            )
        )
        return request_id


def _solve(sizes: _Sizes, times: _Times) -> tuple[Curve, Curve, float, float]:
    """Tell tokens, samples, context and pairs apart: each follows from two measurements that differ in it alone."""
    prompt_s = {length: _typical(values) for length, values in times.prompts.items()}
    batch_s = {batch: _typical(values) for batch, values in times.batches.items()}
    chunk_s = {number: _typical(values) for number, values in times.chunks.items()}
    last = sizes.num_chunks - 1
    pairs = sizes.chunk * sizes.chunk * last
    pair_s = max(chunk_s[last] - chunk_s[0], 0.0) / pairs if last > 0 else 0.0

    num_long = min(NUM_LONG_DECODES, sizes.batches[-1])
    extra_context = num_long * (sizes.chunk * max(sizes.num_chunks, 1) - SHORT_PROMPT)
    context_s = max(_typical(times.long_batch) - batch_s[num_long], 0.0) / max(extra_context, 1)

    # a small difference of large numbers, so of neighbours in time; and never more than the shortest step there is
    sample_s = statistics.median(times.sampling) if times.sampling else 0.0
    sample_s = min(max(sample_s, 0.0), batch_s[1], *prompt_s.values())
    short_context = SHORT_PROMPT + NUM_DECODE_STEPS // 2
    tokens = {1: batch_s[1] - sample_s - context_s * short_context}
    for length, seconds in prompt_s.items():
        tokens[length] = seconds - sample_s - pair_s * chunk_pairs(0, length)
    token_curve = _rising(tokens)
    samples = {0: 0.0}
    for batch, seconds in batch_s.items():
        samples[batch] = seconds - token_curve.at(batch) - context_s * short_context * batch
    return token_curve, _rising(samples), context_s, pair_s


def _rising(seconds: dict[int, float]) -> Curve:
    """More work never takes less time; what seems so is noise."""
    sizes = sorted(seconds)
    values = list(itertools.accumulate((max(seconds[size], 0.0) for size in sizes), max))
    return Curve(tuple(sizes), tuple(values))


def _typical(values: list[float]) -> float:
    """Mean of the middle half."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _powers(first: int, last: int) -> list[int]:
    """``first``, doubled until ``last``, and ``last``."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]
