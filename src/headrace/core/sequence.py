"""The only mutable per-request object: one growing row of tokens and the KV blocks under it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import FinishReason, Request, SequenceProgress


class PrefixNode:
    """Handle of a node of the prefix cache; what is inside is the cache's own business."""

    __slots__ = ()


class SequenceStatus(enum.Enum):
    """Where a sequence is. Preemption is "back to WAITING with nothing computed"."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class BlockTable:
    """The KV block ids of one sequence in token order, kept as int32 so that kernels can copy a row.

    Block ``i`` holds the keys and values of tokens ``[i * block_size, (i + 1) * block_size)``.
    """

    __slots__ = ("_ids", "_size")

    def __init__(self, block_ids: Iterable[int] = ()) -> None:
        self._ids: NDArray[np.int32] = np.fromiter(block_ids, dtype=np.int32)
        self._size = len(self._ids)

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> NDArray[np.int32]:
        """View of the live part; invalid after the next ``extend``."""  # [num_blocks]
        return self._ids[: self._size]

    def extend(self, block_ids: list[int]) -> None:
        needed = self._size + len(block_ids)
        if needed > len(self._ids):
            grown = np.empty(max(needed, 2 * len(self._ids), 8), dtype=np.int32)
            grown[: self._size] = self._ids[: self._size]
            self._ids = grown
        self._ids[self._size : needed] = block_ids
        self._size = needed

    def replace(self, start: int, block_ids: list[int]) -> None:
        """Overwrite entries ``[start, start + len(block_ids))``, which must exist."""
        assert start + len(block_ids) <= self._size
        self._ids[start : start + len(block_ids)] = block_ids

    def clear(self) -> None:
        self._size = 0


class Sequence:
    """State of one generated sequence; everything that can be derived is a property.

    ``token_ids`` is prompt plus output. ``num_computed_tokens`` of them have their keys and values in
    ``block_table``. ``num_cached_tokens`` were found in the prefix cache when the sequence was first
    scheduled. ``prefix_node`` is the locked radix node under the sequence's shared blocks, which are the
    first ``num_shared_blocks`` of the block table; the rest are private. At ``length_limit`` tokens, set by the
    scheduler, the sequence ends.
    ``num_prompt_logprobs`` counts the prompt positions already reported, or not asked for, so that a sequence
    recomputed after preemption reports none twice. ``is_guess`` until it is certain that its answer is wanted.
    """

    __slots__ = (
        "block_table",
        "eos_token_ids",
        "finish_reason",
        "first_scheduled_time",
        "first_token_time",
        "index",
        "is_guess",
        "length_limit",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "num_shared_blocks",
        "prefix_node",
        "request",
        "seed",
        "seq_id",
        "status",
        "stop_reason",
        "token_ids",
    )

    def __init__(self, seq_id: int, request: Request, index: int, eos_token_ids: frozenset[int]) -> None:
        self.seq_id = seq_id
        self.request = request
        self.index = index
        self.eos_token_ids = eos_token_ids
        self.seed = sequence_seed(request.seed, index)
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.length_limit = self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_shared_blocks = 0
        self.num_prompt_logprobs = request.sampling.prompt_logprobs_start
        self.num_preemptions = 0
        self.is_guess = request.is_guess
        self.block_table = BlockTable()
        self.prefix_node: PrefixNode | None = None
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.first_scheduled_time = math.nan
        self.first_token_time = math.nan

    def resume(self, progress: SequenceProgress) -> None:
        """Carry on from what an earlier engine made of the sequence: as after preemption, nothing is computed."""
        if not progress.has_begun:
            return
        self.token_ids.extend(progress.token_ids)
        self.num_cached_tokens = progress.num_cached_tokens
        self.num_prompt_logprobs = progress.num_prompt_logprobs
        self.first_scheduled_time = progress.first_output_time  # the nearest that is known
        if progress.token_ids:
            self.first_token_time = progress.first_output_time

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens whose keys and values are not computed yet; the one quantity scheduling is about."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def private_block_ids(self) -> list[int]:
        """The blocks this sequence owns: those of its table after the ones it shares with the prefix cache."""
        block_ids: list[int] = self.block_table.ids[self.num_shared_blocks :].tolist()
        return block_ids

    @property
    def has_begun(self) -> bool:
        """Whether it was ever scheduled, here or in an earlier engine."""
        return not math.isnan(self.first_scheduled_time)

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def finish(self, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        """Mark it as ended; whoever holds blocks for it frees them."""
        self.status = SequenceStatus.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.request.request_id}#{self.index}, {self.status.value}, "
            f"tokens={self.num_prompt_tokens}+{self.num_output_tokens}, computed={self.num_computed_tokens}, "
            f"blocks={len(self.block_table)})"
        )


def sequence_seed(request_seed: int, index: int) -> int:
    """Seed in ``[0, 2**64)`` of the ``index``-th sequence of a request; index 0 keeps the request's own.

    Distinct indices are spread by the golden-ratio increment of splitmix64 (Steele, Lea and Flood,
    "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
    """
    return (request_seed + index * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
