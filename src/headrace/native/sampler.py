"""Choosing next tokens and reporting log-probabilities natively: the typed door to ``csrc/ops/sampling.h``.

Chooses the very tokens of ``model.sampler``, whose docstring (and that of ``model.draw``) is the definition. Does
not know sequences, blocks or the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.request import TokenLogprobs
from headrace.core.sampled_tokens import MAX_VOCAB_SIZE, NOT_FINITE, NOTHING_LEFT, SampledTokens
from headrace.core.step import SampleSpec, TokenMask
from headrace.native import _native
from headrace.native.sample_batch import make_batch

Float32Array = NDArray[np.float32]
Int32Array = NDArray[np.int32]

_FAILURES = {1: NOT_FINITE, 2: NOTHING_LEFT}
"""Messages by ``RowStatus`` of ``csrc/ops/sampling.h``; 0 is a chosen token."""


class NativeSampler:
    """Samples ids in ``[0, vocab_size)``; logits may have more columns (padding), which are never chosen.

    Rows are spread over the threads of ``pool``. One thread calls it. Takes up to 20 bytes per token of the
    vocabulary and thread, when they are first needed.
    """

    def __init__(self, vocab_size: int, pool: _native.ThreadPool) -> None:
        assert 1 <= vocab_size <= MAX_VOCAB_SIZE
        self._pool = pool
        self._workspace = _native.SamplingWorkspace(vocab_size, pool.num_threads)

    def sample(self, logits: Float32Array, specs: Sequence[SampleSpec], token_mask: TokenMask | None) -> SampledTokens:
        """Choose one token per row of ``logits`` ``[S, >= vocab_size]``, C-contiguous, which are left unchanged.

        An unusable row (NaN or +inf, or nothing left to choose) fails alone. Cost: one pass over a greedy row,
        two over one that draws, a few more if its filters keep more than a few dozen tokens; another, with
        exponentials, over the likelier parts of a row whose mask forbids something.
        """
        wanted = {row: spec.params.logprobs for row, spec in enumerate(specs) if spec.params.logprobs is not None}
        logprobs = _LogprobColumns.empty(len(specs), max(wanted.values(), default=0))
        token_ids = np.empty(len(specs), np.int32)
        statuses = np.empty(len(specs), np.int32)
        masked_mass = np.empty(len(specs), np.float32)
        batch = make_batch(specs, token_mask)
        _native.sample(logits, batch, self._pool, self._workspace, token_ids, statuses, masked_mass, logprobs.handle)
        failed = {row: _FAILURES[int(statuses[row])] for row in statuses.nonzero()[0].tolist()}
        chosen = token_ids.tolist()
        reported = {row: logprobs.entry(row, chosen[row], num) for row, num in wanted.items() if row not in failed}
        for row in reported.keys() & {row for row, spec in enumerate(specs) if spec.params.logprob_token_ids}:
            reported[row] = self._with_named(reported[row], logits[row], specs[row].params.logprob_token_ids)
        return SampledTokens(chosen, reported, failed, masked_mass.tolist())

    def _with_named(self, entry: TokenLogprobs, logits: Float32Array, token_ids: tuple[int, ...]) -> TokenLogprobs:
        """``entry`` with these tokens' log-probabilities; ``entry`` itself tells what to subtract from a logit."""
        normalizer = float(logits[entry.token_id]) - entry.logprob
        values = (logits[list(token_ids)].astype(np.float64) - normalizer).tolist()
        return TokenLogprobs(entry.token_id, entry.logprob, entry.rank, tuple(zip(token_ids, values, strict=True)))

    def token_logprobs(
        self, logits: Float32Array, token_ids: Sequence[int], num_top: Sequence[int]
    ) -> list[TokenLogprobs]:
        """Report token ``token_ids[r]`` and the ``num_top[r]`` likeliest tokens of each row of ``logits``.

        The rank is one more than the number of likelier tokens. A row with NaN, +inf or nothing finite reports NaN
        at rank 0 and no alternatives.
        """
        columns = _LogprobColumns.empty(len(token_ids), max(num_top, default=0))
        tokens, counts = np.array(token_ids, np.int32), np.array(num_top, np.int32)
        _native.report_logprobs(logits, tokens, counts, self._pool, self._workspace, columns.handle)
        rows = enumerate(zip(token_ids, num_top, strict=True))
        return [columns.entry(row, token_id, count) for row, (token_id, count) in rows]


@dataclass(frozen=True, slots=True, eq=False)
class _LogprobColumns:
    """What C++ reports, by row; rows that report nothing, or fewer alternatives, leave their places unwritten."""

    logprobs: Float32Array  # [R]
    ranks: Int32Array  # [R]
    top_ids: Int32Array  # [R, num_top], -1 where there are no more
    top_logprobs: Float32Array  # [R, num_top]

    @classmethod
    def empty(cls, num_rows: int, num_top: int) -> _LogprobColumns:
        return cls(
            np.empty(num_rows, np.float32),
            np.empty(num_rows, np.int32),
            np.full((num_rows, num_top), -1, np.int32),
            np.empty((num_rows, num_top), np.float32),
        )

    @property
    def handle(self) -> _native.LogprobColumns:
        return _native.LogprobColumns(self.logprobs, self.ranks, self.top_ids, self.top_logprobs)

    def entry(self, row: int, token_id: int, num_top: int) -> TokenLogprobs:
        top = zip(self.top_ids[row, :num_top].tolist(), self.top_logprobs[row, :num_top].tolist(), strict=True)
        return TokenLogprobs(
            token_id=token_id,
            logprob=float(self.logprobs[row]),
            rank=int(self.ranks[row]),
            top=tuple(pair for pair in top if pair[0] >= 0),
        )
