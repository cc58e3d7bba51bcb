"""The waist: what the scheduler decides goes down as a ``StepPlan``, what happened comes up as a
``StepResult``.

Scheduler and executor know these types and not each other. An executor keeps no state per sequence
besides KV memory: every plan is complete, so nothing has to be told about finishes, aborts or
preemptions, and any executor (native, torch, tensor parallel, recorded, simulated) can stand in for
another.

What there is one of for each sequence in each step is a msgspec struct: it is made in a tenth of the time that a
frozen dataclass takes, and takes no part in garbage collection.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.request import TokenLogprobs
from headrace.core.sampling import SamplingParams


class SampleSpec(msgspec.Struct, frozen=True, gc=False):
    """All that choosing the next token of one sequence depends on, besides its logits.

    The token is a function of ``(seed, position, logits)`` and these fields, never of the batch.
    ``position`` is the index the sampled token will have in its sequence. ``token_ids`` is the whole
    sequence so far and its first ``num_prompt_tokens`` entries are the prompt; it is only filled in when
    ``params.needs_history``. ``suppressed_token_ids`` may not be chosen at this position (end-of-sequence
    and stop tokens before ``min_tokens``). ``bad_word_token_ids`` are token rows that may not be completed.
    """

    params: SamplingParams
    seed: int
    position: int
    token_ids: SequenceOf[int] = ()
    num_prompt_tokens: int = 0
    suppressed_token_ids: tuple[int, ...] = ()
    bad_word_token_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def forbidden_token_ids(self) -> list[int]:
        """The suppressed tokens and those that would complete a bad word, whose beginning may lie in the prompt."""
        history = self.token_ids
        forbidden = list(self.suppressed_token_ids)
        for word in self.bad_word_token_ids:
            prefix = word[:-1]
            if len(prefix) <= len(history) and tuple(history[len(history) - len(prefix) :]) == prefix:
                forbidden.append(word[-1])
        return forbidden


@dataclass(frozen=True, slots=True)
class PromptLogprobSpec:
    """Which prompt positions of a chunk must report log-probabilities.

    Row ``first_row + i`` of the chunk predicts ``target_token_ids[i]``; ``num_top`` alternatives each.
    """

    first_row: int
    target_token_ids: tuple[int, ...]
    num_top: int


class JoinedTokens(NamedTuple):
    """Positions ``[start, end)`` that a plan computes for the sequence ``seq_id``, and that another begins with."""

    seq_id: int
    start: int
    end: int


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """The share of one step that one sequence gets.

    Compute ``token_ids``, which stand at positions ``[start, start + len(token_ids))`` of the sequence.
    ``block_ids`` is the sequence's whole block table and covers at least those positions; like
    ``SampleSpec.token_ids`` it is a view that stays valid until ``Scheduler.update``. ``sample`` is set
    when the chunk reaches the sequence's end, so that the logits of its last row give the next token.
    What stands before ``start`` is in the blocks already, but for the ``joined`` tokens: the same plan computes them
    for others, and in each layer their keys and values are written to this sequence's blocks as well, before anything
    attends.
    """

    seq_id: int
    token_ids: SequenceOf[int]
    start: int
    block_ids: NDArray[np.int32]  # [num_blocks_of_sequence]
    sample: SampleSpec | None = None
    prompt_logprobs: PromptLogprobSpec | None = None
    joined: tuple[JoinedTokens, ...] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class TransferKind(enum.Enum):
    """Between which two tiers a block's content is copied, and in which direction; or within the device.

    The device's blocks are those that kernels read. Below them lie the host tier and, below that, the disk tier;
    each numbers its slots from 0.
    """

    COPY = "device to device"
    OFFLOAD = "device to host"
    RESTORE = "host to device"
    SPILL = "host to disk"
    FETCH = "disk to host"


class BlockTransfer(NamedTuple):
    """Copy all of a KV block's content from one tier's slot ``source`` to another's slot ``target``."""

    kind: TransferKind
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's decision, complete and nothing else.

    ``transfers`` are done in order, each after the one before it has taken effect, and all of them before anything
    is computed. A plan may have nothing but transfers.
    """

    step_id: int
    scheduled: tuple[ScheduledSequence, ...]
    preempted_seq_ids: tuple[int, ...] = ()
    transfers: tuple[BlockTransfer, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to execute."""
        return not (self.scheduled or self.transfers)

    @property
    def moves_between_tiers(self) -> bool:
        return any(transfer.kind is not TransferKind.COPY for transfer in self.transfers)

    @property
    def num_tokens(self) -> int:
        return sum(len(item.token_ids) for item in self.scheduled)

    @property
    def num_samples(self) -> int:
        return sum(item.sample is not None for item in self.scheduled)

    def digest(self) -> str:
        """Hex digest of the decision, equal across processes and runs; for replay tests."""
        text = repr(
            [
                (s.seq_id, s.start, list(s.token_ids), s.block_ids.tolist(), s.sample is not None, s.joined)
                for s in self.scheduled
            ]
            + [self.preempted_seq_ids]
            + [(t.kind.value, t.source, t.target) for t in self.transfers]
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an executor made of a plan.

    ``sampled_token_ids`` has one entry per ``ScheduledSequence`` with a ``sample``, in plan order.
    ``failed`` maps a sequence id to a message when its logits were unusable (NaN or inf): its sampled
    entry is -1 and must be ignored. ``logprobs`` maps a sequence id to the log-probabilities of its
    sampled token where they were asked for, ``prompt_logprobs`` likewise for the rows of its
    ``PromptLogprobSpec``. ``masked_mass`` is how likely a token was that the token mask forbids, in [0, 1], one entry
    per sample, or none at all. ``elapsed_s`` is how long the step took, ``transfer_s`` the part of it that went into
    the plan's transfers. ``failed_transfers`` are fetches that did not bring back what was spilled (a damaged file):
    their targets hold nothing. No other kind of transfer may fail without failing the step.
    """

    sampled_token_ids: list[int]
    elapsed_s: float
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    masked_mass: SequenceOf[float] = ()
    transfer_s: float = 0.0
    failed_transfers: tuple[BlockTransfer, ...] = ()


TokenMask = NDArray[np.int32]
"""Bitmask over the vocabulary, ``[num_samples, ceil(vocab_size / 32)]``: bit ``t % 32`` of word
``t // 32`` says whether token ``t`` may be chosen; rows in plan order. The seam for constrained decoding."""


class PendingMask(Protocol):
    """A step's token mask while it is still being computed, beside the forward pass that it is for."""

    def wait(self) -> TokenMask:
        """The finished mask; called once, between the forward pass and sampling."""
        ...


class Executor(Protocol):
    """Runs plans on some hardware. Not thread-safe; owned by one engine thread."""

    @property
    def num_blocks(self) -> int:
        """How many KV blocks this executor has memory for; ids are ``[0, num_blocks)``."""
        ...

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        """Do the plan's transfers, then compute it.

        Raises ``MemoryError`` only once the transfers are done, so that the rest of the step can be computed again.
        """
        ...

    def close(self) -> None: ...
