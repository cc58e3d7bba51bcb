"""Runs plans with the native program: flatten, one call into C++, sample. Needs no torch.

Owns the runtime (KV memory, arena, threads) and no state per sequence. Does not know the scheduler, requests,
or time beyond the length of a step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.forward_batch import ForwardBatch
from headrace.core.request import TokenLogprobs
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.native.operations import BLOCK_SIZE_STEP, KvFormat
from headrace.native.program import NativeProgram, NativeRuntime, RuntimeSizes
from headrace.native.sampler import NativeSampler

_NOT_FINITE = "the model computed NaN or infinite values for this sequence"


def runtime_sizes(config: EngineConfig, num_blocks: int, max_model_len: int, threads: int) -> RuntimeSizes:
    """Sizes of the runtime that ``config`` asks for. Raises ``ConfigError`` for blocks the kernels cannot read."""
    if config.block_size % BLOCK_SIZE_STEP:
        raise ConfigError(
            f"block_size is {config.block_size} but the native kernels read keys {BLOCK_SIZE_STEP} positions at a "
            f"time; choose a multiple of {BLOCK_SIZE_STEP}, or --backend torch",
            "block_size",
        )
    return RuntimeSizes(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_tokens=config.max_num_batched_tokens,
        max_sequences=config.max_num_seqs,
        max_context=max_model_len,
        num_threads=threads,
    )


class NativeExecutor:
    """Implements ``core.step.Executor`` over a compiled program. One thread only.

    A sequence for which something not finite was computed fails at once, even in the middle of its prompt,
    and what it wrote to the KV memory is cleared.
    """

    def __init__(self, program: NativeProgram, sizes: RuntimeSizes, kv_format: KvFormat) -> None:
        self._runtime = NativeRuntime(program, sizes, kv_format)
        self._sampler = NativeSampler(program.config.vocab_size, self._runtime.pool)
        self._block_size = sizes.block_size
        self._max_rows = sizes.max_sequences

    @property
    def num_blocks(self) -> int:
        return self._runtime.num_blocks

    @property
    def block_memory(self) -> NativeRuntime:
        """The KV memory, for copying whole blocks out of it and into it."""
        return self._runtime

    def pin_threads(self, cpus: Sequence[int]) -> None:
        """Keep each thread but the caller's on one of ``cpus``, which are as many as there are threads."""
        self._runtime.pin_threads(cpus)

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        started = time.perf_counter()
        batch = ForwardBatch.from_plan(plan, self._block_size)
        failed = self._fail_unusable(plan, batch, self._runtime.forward(batch))
        seq_ids = [item.seq_id for item in plan.scheduled if item.sample is not None]
        specs = [item.sample for item in plan.scheduled if item.sample is not None]
        prompt_logprobs = self._prompt_logprobs(plan, batch, failed)
        if not specs:
            return StepResult([], time.perf_counter() - started, prompt_logprobs=prompt_logprobs, failed=failed)
        logits = self._runtime.logits(batch.logit_rows)
        sampled = self._sampler.sample(logits, specs, None if token_mask is None else token_mask.wait())
        failed = {seq_ids[row]: message for row, message in sampled.failed.items()} | failed
        return StepResult(
            sampled_token_ids=[
                -1 if seq_id in failed else token_id
                for seq_id, token_id in zip(seq_ids, sampled.token_ids, strict=True)
            ],
            elapsed_s=time.perf_counter() - started,
            logprobs={seq_ids[row]: entry for row, entry in sampled.logprobs.items() if seq_ids[row] not in failed},
            prompt_logprobs=prompt_logprobs,
            failed=failed,
            masked_mass=sampled.masked_mass,
        )

    def close(self) -> None:
        """Nothing to do: memory and threads go with the executor."""

    def _fail_unusable(self, plan: StepPlan, batch: ForwardBatch, is_finite: NDArray[np.bool_]) -> dict[int, str]:
        """Messages, by sequence id, for sequences with values that are not finite; clears what they wrote."""
        if is_finite.all():
            return {}
        failed = {}
        for row in np.flatnonzero(~is_finite):
            self._runtime.clear_slots(self._written_slots(batch, int(row)))
            failed[plan.scheduled[row].seq_id] = _NOT_FINITE
        return failed

    def _written_slots(self, batch: ForwardBatch, sequence: int) -> NDArray[np.int32]:
        """What the step wrote for a sequence: its own tokens, and those it joined."""
        own = batch.slot_mapping[batch.query_start[sequence] : batch.query_start[sequence + 1]]
        is_own = np.isin(batch.joined_slots // self._block_size, batch.block_tables[sequence])
        return np.concatenate((own, batch.joined_slots[is_own]))

    def _prompt_logprobs(
        self, plan: StepPlan, batch: ForwardBatch, failed: dict[int, str]
    ) -> dict[int, list[TokenLogprobs]]:
        """Log-probabilities of prompt tokens by sequence id, a bounded number of logit rows at a time."""
        reported: dict[int, list[TokenLogprobs]] = {}
        for item, first_row in zip(plan.scheduled, batch.query_start[:-1].tolist(), strict=True):
            spec = item.prompt_logprobs
            if spec is None or item.seq_id in failed:
                continue
            entries: list[TokenLogprobs] = []
            for start in range(0, len(spec.target_token_ids), self._max_rows):
                targets = spec.target_token_ids[start : start + self._max_rows]
                first = first_row + spec.first_row + start
                rows = np.arange(first, first + len(targets), dtype=np.int32)
                entries += self._sampler.token_logprobs(
                    self._runtime.logits(rows), targets, [spec.num_top] * len(targets)
                )
            reported[item.seq_id] = entries
        return reported
