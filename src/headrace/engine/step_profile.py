"""Knowing what steps cost before anybody waits for one: measured while the engine is idle, kept between starts.

Owns which steps are measured and the file the result is kept in. It does not know how costs are learned
(``scheduler/cost_model.py``) nor when the engine is idle. Nothing here delays a start: the measuring begins
when the engine has nothing to do, one short step at a time, and ends for good after ``MAX_PROFILE_S``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence
from headrace.core.step import Executor, SampleSpec, ScheduledSequence, StepPlan
from headrace.scheduler.cost_model import StepCostModel, StepCosts, StepFeatures
from headrace.scheduler.scheduler import BatchLimits

MAX_PROFILE_S: Final = 1.5
"""Most time spent computing made-up steps."""

MAX_PIECE_S: Final = 0.25
"""A step foretold to take longer is left out: a request may come meanwhile."""

NUM_ROUNDS: Final = 3
MIN_STEPS_TO_KEEP: Final = 64
_SHAPES: Final = (
    (1, 64, 0), (4, 64, 0), (0, 0, 32), (16, 64, 0), (0, 0, 64), (8, 512, 0), (8, 64, 32), (0, 0, 128),
    (32, 64, 0), (2, 1024, 0), (16, 128, 64), (0, 0, 256), (64, 64, 0), (0, 0, 512), (32, 256, 128),
)  # fmt: skip
"""Decoding sequences, the context of each, and prompt tokens computed beside them."""

_SALT: Final = "step-profile"

logger = logging.getLogger(__name__)


class StepCostFile:
    """Where the costs of one model on one machine and build are kept; ``identity`` is all they depend on."""

    def __init__(self, folder: Path, identity: tuple[str, ...]) -> None:
        digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
        self._path = folder / f"{digest}.json"

    def load(self) -> StepCosts | None:
        """The costs kept by an earlier run, if there are any that can be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=StepCosts)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("step costs in %s cannot be used and are measured again: %s", self._path, error)
            return None

    def save(self, costs: StepCosts) -> None:
        """Keep ``costs``, whole or not at all. A folder that cannot be written to costs the next start a little."""
        staged = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(msgspec.json.encode(costs))
            staged.replace(self._path)
        except OSError as error:
            logger.info("step costs are not kept for the next start: %s", error)


class StepProfile:
    """Measures a grid of steps on an idle engine's executor; ``IdleWork``.

    Steps use free KV blocks only and give them back at once: nothing that is cached is lost.
    """

    def __init__(
        self, executor: Executor, kv: KVCacheManager, costs: StepCostModel, limits: BatchLimits, file: StepCostFile
    ) -> None:
        self._executor = executor
        self._kv = kv
        self._costs = costs
        self._file = file
        self._steps = iter(()) if costs.is_known else profile_steps(limits)
        self._spent_s = 0.0
        self._seq_id = 0

    def advance(self) -> bool:
        try:
            if self._measure_next():
                return True
        except Exception:
            logger.warning("a made-up step failed, so step costs are learned from requests alone", exc_info=True)
        self._steps = iter(())
        if self._spent_s > 0:
            self._file.save(self._costs.costs)
            logger.debug("measured steps for %.2f s; median error %.3f", self._spent_s, self._costs.median_error)
            self._spent_s = 0.0
        return False

    def close(self) -> None:
        """Keep what was learned since, for the next start."""
        if self._costs.num_observed >= MIN_STEPS_TO_KEEP:
            self._file.save(self._costs.costs)

    def _measure_next(self) -> bool:
        for features in self._steps:
            if self._spent_s >= MAX_PROFILE_S:
                return False
            if self._costs.predict(features) <= MAX_PIECE_S and self._measure(features):
                return True
        return False

    def _measure(self, features: StepFeatures) -> bool:
        """Run and learn from one step; False if there is no room for it."""
        sequences = [self._sequence(count) for count in _lengths(features)]
        num_blocks = sum(-(-seq.num_tokens // self._kv.block_size) for seq in sequences)
        if num_blocks > self._kv.num_free_blocks:
            return False
        for seq in sequences:
            self._kv.acquire(seq, 0)
            self._kv.extend(seq, seq.num_tokens)
        try:
            plan = StepPlan(0, tuple(_item(seq, features) for seq in sequences))
            result = self._executor.execute(plan, None)
        finally:
            for seq in sequences:
                self._kv.release(seq)
        self._spent_s += result.elapsed_s
        self._costs.observe(StepFeatures.of(plan), result.elapsed_s)
        return True

    def _sequence(self, num_tokens: int) -> Sequence:
        self._seq_id -= 1  # below every id of a request's sequence
        request = Request(
            request_id=f"{_SALT}{self._seq_id}",
            prompt_token_ids=[0] * num_tokens,
            sampling=_GREEDY,
            seed=0,
            arrival_time=0.0,
            cache_salt=_SALT,
        )
        return Sequence(self._seq_id, request, 0, frozenset())


_GREEDY: Final = SamplingParams(temperature=0.0, max_tokens=1)


def profile_steps(limits: BatchLimits) -> Iterator[StepFeatures]:
    """Steps that tell the terms of the cost apart, the short ones first, several times."""
    longest = limits.max_model_len - 1
    for _ in range(NUM_ROUNDS):
        for num_decodes, context, num_new in _SHAPES:
            num_tokens = num_decodes + num_new
            fits = num_decodes <= limits.max_num_seqs and num_tokens <= limits.max_num_batched_tokens
            if fits and max(context, num_new) <= longest:
                yield StepFeatures(num_decodes, num_decodes * context, num_new, 0)


def _lengths(features: StepFeatures) -> list[int]:
    """Tokens of each sequence of such a step."""
    decodes = [features.decode_context // features.num_decodes] * features.num_decodes if features.num_decodes else []
    return [*decodes, features.num_new_tokens] if features.num_new_tokens else decodes


def _item(seq: Sequence, features: StepFeatures) -> ScheduledSequence:
    """The last token of a sequence, or all of the one that is the chunk."""
    is_chunk = seq.num_tokens == features.num_new_tokens
    start = 0 if is_chunk else seq.num_tokens - 1
    return ScheduledSequence(
        seq_id=seq.seq_id,
        token_ids=seq.token_ids[start:],
        start=start,
        block_ids=seq.block_table.ids,
        sample=SampleSpec(params=_GREEDY, seed=0, position=seq.num_tokens),
    )
