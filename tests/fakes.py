"""Stand-ins whose answers can be computed on paper. No mocks: each obeys the contract it stands in for."""

from __future__ import annotations

import zlib
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np

from headrace.core.request import Request, TokenLogprobs
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import DEFAULT_CLASS, NO_TARGETS, ServiceLevel
from headrace.core.step import BlockTransfer, PendingMask, ScheduledSequence, StepPlan, StepResult, TransferKind


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


def next_token(token_ids: list[int], vocab_size: int) -> int:
    """The token ``ContentExecutor`` answers after ``token_ids``."""
    return zlib.crc32(np.asarray(token_ids, dtype=np.int64).tobytes()) % vocab_size


def expected_output(
    prompt: list[int], max_tokens: int, vocab_size: int, eos_token_ids: frozenset[int] = frozenset()
) -> list[int]:
    """What a request alone on a ``ContentExecutor`` must give."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids, vocab_size))
        if token_ids[-1] in eos_token_ids:
            break
    return token_ids[len(prompt) :]


@dataclass
class ContentExecutor:
    """An executor whose KV memory remembers the token written to each slot.

    The next token is a hash of what the sequence's slots *contain*, so any fault in block tables, sharing,
    eviction, swapping or recomputation changes the output. ``plans`` keeps every plan executed.
    """

    num_blocks: int
    block_size: int
    vocab_size: int = 50
    num_host_blocks: int = 0
    num_disk_blocks: int = 0
    step_s: float = 0.01
    fail_seq_ids: set[int] = field(default_factory=set)
    damaged_disk_slots: set[int] = field(default_factory=set)
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        shapes = [(count, self.block_size) for count in (self.num_blocks, self.num_host_blocks, self.num_disk_blocks)]
        self._slots, self._host, self._disk = (np.full(shape, -1, dtype=np.int64) for shape in shapes)

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        self.plans.append(plan)
        failed_transfers = [transfer for transfer in plan.transfers if not self._is_done(transfer)]
        for item in plan.scheduled:
            for position, token_id in enumerate(item.token_ids, item.start):
                block_id = item.block_ids[position // self.block_size]
                self._slots[block_id, position % self.block_size] = token_id
        for item in plan.scheduled:
            self._join(plan, item)
        result = StepResult(sampled_token_ids=[], elapsed_s=self.step_s, failed_transfers=tuple(failed_transfers))
        for item in plan.scheduled:
            content = self._slots[item.block_ids].reshape(-1)[: item.end]
            assert (content >= 0).all(), f"sequence {item.seq_id} reads a slot nobody wrote"
            if item.prompt_logprobs is not None:
                result.prompt_logprobs[item.seq_id] = [
                    TokenLogprobs(token_id, -0.5, 1) for token_id in item.prompt_logprobs.target_token_ids
                ]
            if item.sample is None:
                continue
            if item.seq_id in self.fail_seq_ids:
                result.failed[item.seq_id] = "logits are not finite"
                result.sampled_token_ids.append(-1)
                continue
            result.sampled_token_ids.append(next_token(content.tolist(), self.vocab_size))
            if named := item.sample.params.logprob_token_ids:
                result.logprobs[item.seq_id] = self._logprobs_of(named, content.tolist())
        return result

    def _logprobs_of(self, token_ids: SequenceOf[int], content: list[int]) -> TokenLogprobs:
        """A log-probability of each named token that depends on everything before it."""
        top = tuple((each, -1.0 - next_token([*content, each], 100)) for each in token_ids)
        return TokenLogprobs(token_ids[0], top[0][1], 1, top)

    def _join(self, plan: StepPlan, item: ScheduledSequence) -> None:
        """Write what the plan computes for others to the slots of a sequence that begins with it."""
        others = {other.seq_id: other for other in plan.scheduled}
        for joined in item.joined:
            other = others[joined.seq_id]
            assert other.start <= joined.start < joined.end <= min(other.end, item.start)
            for position in range(joined.start, joined.end):
                block_id = item.block_ids[position // self.block_size]
                self._slots[block_id, position % self.block_size] = other.token_ids[position - other.start]

    def close(self) -> None:
        self._slots = np.empty((0, 0), dtype=np.int64)

    def _is_done(self, transfer: BlockTransfer) -> bool:
        """Copy a block; a damaged slot of the disk cannot be read."""
        memories = {
            TransferKind.COPY: (self._slots, self._slots),
            TransferKind.OFFLOAD: (self._slots, self._host),
            TransferKind.RESTORE: (self._host, self._slots),
            TransferKind.SPILL: (self._host, self._disk),
            TransferKind.FETCH: (self._disk, self._host),
        }
        if transfer.kind is TransferKind.FETCH and transfer.source in self.damaged_disk_slots:
            return False
        source, target = memories[transfer.kind]
        target[transfer.target] = source[transfer.source]
        return True


def make_request(
    prompt: list[int],
    request_id: str = "r",
    arrival_time: float = 0.0,
    priority: int = 0,
    cache_salt: str = "",
    service_level: ServiceLevel = NO_TARGETS,
    service_class: str = DEFAULT_CLASS,
    tenant: str = "",
    weight: float = 1.0,
    **sampling: object,
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        seed=7,
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        service_level=service_level,
        service_class=service_class,
        tenant=tenant,
        weight=weight,
    )
