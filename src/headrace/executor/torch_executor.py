"""Runs plans with torch: flatten, forward, sample. The reference that every other executor is compared with.

Owns the KV memory and no state per sequence. Does not know the scheduler, requests, or time beyond the length
of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import ConfigError
from headrace.core.forward_batch import ForwardBatch
from headrace.core.model_config import ModelConfig
from headrace.core.request import TokenLogprobs
from headrace.core.sampled_tokens import NO_TOKEN, SampledTokens
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.model.kv_memory import PagedKVMemory
from headrace.model.logprobs import MAX_ROWS_AT_ONCE, token_logprobs
from headrace.model.sampler import Sampler
from headrace.model.torch_batch import TorchBatch
from headrace.model.transformer import Transformer

_NOT_FINITE = "the model computed NaN or infinite values for this sequence"

_DTYPES = {
    "auto": torch.float32,  # the only type CPUs are sure to be fast in
    "float32": torch.float32,
    "f32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "f16": torch.float16,
}


class LanguageModel(Protocol):
    """What the executor needs of a model."""

    def forward(self, batch: TorchBatch, kv: PagedKVMemory) -> Tensor:
        """Hidden states ``[T, hidden_size]`` of the batch's tokens; writes their keys and values to ``kv``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, >= vocab_size]`` float32 of hidden rows ``[R, hidden_size]``."""
        ...


def torch_dtype(name: str) -> torch.dtype:
    """The type that a ``dtype`` setting means here. Raises ``ConfigError`` for an unknown name."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ConfigError(
            f"dtype is {name!r} but torch computes in one of {', '.join(_DTYPES)}; choose one, or --backend native",
            "dtype",
        )
    return dtype


def create_torch_executor(
    config: ModelConfig, weights: Mapping[str, Tensor], num_blocks: int, block_size: int, threads: int
) -> TorchExecutor:
    """An executor for ``weights``, computing in their type and on their device.

    Takes the memory of ``num_blocks`` blocks. ``threads`` becomes torch's number of threads, which is one
    setting for the whole process.
    """
    torch.set_num_threads(threads)
    embedding = weights["embedding"]
    kv = PagedKVMemory(config, num_blocks, block_size, embedding.dtype, embedding.device)
    return TorchExecutor(Transformer(config, weights), kv, config.vocab_size, embedding.device)


@dataclass(frozen=True, slots=True)
class _PromptRow:
    """A row of hidden states that must report on ``target_token_id``, the prompt token after it."""

    seq_id: int
    row: int
    target_token_id: int
    num_top: int


class TorchExecutor:
    """Implements ``core.step.Executor`` for any ``LanguageModel``. One thread only.

    Logits exist only for rows that sample and, ``MAX_ROWS_AT_ONCE`` at a time, for prompt rows whose
    log-probabilities were asked for. A sequence for which the model computes something that is not finite
    fails at once, even in the middle of its prompt, before such keys and values can enter the prefix cache.
    """

    def __init__(self, model: LanguageModel, kv: PagedKVMemory, vocab_size: int, device: torch.device) -> None:
        self._model = model
        self._kv = kv
        self._sampler = Sampler(vocab_size)
        self._vocab_size = vocab_size
        self._device = device

    @property
    def num_blocks(self) -> int:
        return self._kv.num_blocks

    @property
    def block_memory(self) -> PagedKVMemory:
        """The KV memory, for copying whole blocks out of it and into it."""
        return self._kv

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        """Run one step. Raises whatever torch raises (out of memory, say): the whole step has failed then."""
        started = time.perf_counter()
        batch = TorchBatch.from_forward_batch(ForwardBatch.from_plan(plan, self._kv.block_size), self._device)
        with torch.inference_mode():
            hidden = self._model.forward(batch, self._kv)
            failed = _unusable(plan, batch.source, hidden)
            sampled = self._sample(plan, batch, hidden, token_mask)
            prompt_logprobs = self._prompt_logprobs(plan, batch, hidden, failed)
        return _result(plan, sampled, prompt_logprobs, failed, time.perf_counter() - started)

    def close(self) -> None:
        """Nothing to do: tensors are freed with the executor."""

    def _sample(
        self, plan: StepPlan, batch: TorchBatch, hidden: Tensor, token_mask: PendingMask | None
    ) -> SampledTokens:
        specs = [item.sample for item in plan.scheduled if item.sample is not None]
        if not specs:
            return SampledTokens([])
        mask = None if token_mask is None else token_mask.wait()
        return self._sampler.sample(self._model.logits(hidden[batch.logit_rows]), specs, mask)

    def _prompt_logprobs(
        self, plan: StepPlan, batch: TorchBatch, hidden: Tensor, failed: dict[int, str]
    ) -> dict[int, list[TokenLogprobs]]:
        """Log-probabilities of prompt tokens by id of the sequence, except of those in ``failed``."""
        reported: dict[int, list[TokenLogprobs]] = {}
        rows = [row for row in _prompt_rows(plan, batch.source) if row.seq_id not in failed]
        for start in range(0, len(rows), MAX_ROWS_AT_ONCE):
            some = rows[start : start + MAX_ROWS_AT_ONCE]
            index = torch.tensor([row.row for row in some], device=self._device)
            logits = self._model.logits(hidden[index])[:, : self._vocab_size]
            entries = token_logprobs(logits, [row.target_token_id for row in some], [row.num_top for row in some])
            for row, entry in zip(some, entries, strict=True):
                reported.setdefault(row.seq_id, []).append(entry)
        return reported


def _unusable(plan: StepPlan, batch: ForwardBatch, hidden: Tensor) -> dict[int, str]:
    """Messages, by sequence id, for sequences with a hidden row that is not finite."""
    is_finite = hidden.isfinite().all(dim=1)  # [T]
    if bool(is_finite.all()):
        return {}
    is_usable = np.logical_and.reduceat(is_finite.cpu().numpy(), batch.query_start[:-1])  # [B]
    return {plan.scheduled[index].seq_id: _NOT_FINITE for index in np.flatnonzero(~is_usable)}


def _prompt_rows(plan: StepPlan, batch: ForwardBatch) -> Iterator[_PromptRow]:
    for item, first_row in zip(plan.scheduled, batch.query_start[:-1].tolist(), strict=True):
        spec = item.prompt_logprobs
        if spec is not None:
            for row, target in enumerate(spec.target_token_ids, first_row + spec.first_row):
                yield _PromptRow(item.seq_id, row, target, spec.num_top)


def _result(
    plan: StepPlan,
    sampled: SampledTokens,
    prompt_logprobs: dict[int, list[TokenLogprobs]],
    failed: dict[int, str],
    elapsed_s: float,
) -> StepResult:
    """Name the sampler's rows by the sequences they belong to."""
    seq_ids = [item.seq_id for item in plan.scheduled if item.sample is not None]
    failed = {seq_ids[row]: message for row, message in sampled.failed.items()} | failed
    token_ids = zip(seq_ids, sampled.token_ids, strict=True)
    return StepResult(
        sampled_token_ids=[NO_TOKEN if seq_id in failed else token_id for seq_id, token_id in token_ids],
        elapsed_s=elapsed_s,
        logprobs={seq_ids[row]: entry for row, entry in sampled.logprobs.items() if seq_ids[row] not in failed},
        prompt_logprobs=prompt_logprobs,
        failed=failed,
        masked_mass=sampled.masked_mass,
    )
