"""The order of tokens that every filter and every list of alternatives agrees on.

Tokens rank by falling logit, equal logits by rising id. ``torch.topk`` leaves the order of equal values open,
also which of them it returns; this module owns closing that gap without sorting whole vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_CANDIDATES = 64
"""How many of the likeliest tokens to look at first: more than most filters keep."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest N tokens of R rows, stored in vocabulary order.

    ``ids`` rise along a row. ``ranked_logits`` fall along a row and ``by_rank[r, i]`` is the column (of
    ``ids``) of the token at rank ``i``. Tokens as likely as the last one may be missing, so a cut between
    two ranks is exact only above the last value: see ``is_exact``.
    """

    ids: Tensor  # [R, N] int64
    ranked_logits: Tensor  # [R, N]
    by_rank: Tensor  # [R, N] int64
    is_complete: bool

    @classmethod
    def of(cls, logits: Tensor, size: int) -> Candidates:
        """The first ``size`` tokens of each row of ``logits`` ``[R, V]``; all of them if ``size >= V``."""
        num_rows, vocab_size = logits.shape
        is_complete = size >= vocab_size
        if is_complete:
            ids = torch.arange(vocab_size, device=logits.device).expand(num_rows, -1)
        else:
            ids = logits.topk(size, dim=1, sorted=False).indices.sort(dim=1).values
            logits = logits.gather(1, ids)
        # Stable, on columns in vocabulary order: equal logits stay in the order of their ids.
        ranked_logits, by_rank = logits.sort(dim=1, descending=True, stable=True)
        return cls(ids, ranked_logits, by_rank, is_complete)

    def is_exact(self, num_kept: Tensor) -> Tensor:
        """Whether the first ``num_kept`` ``[R]`` candidates are the first of the whole vocabulary, per row."""
        if self.is_complete:
            return torch.ones_like(num_kept, dtype=torch.bool)
        last_kept = self.ranked_logits.gather(1, (num_kept - 1).unsqueeze(1)).squeeze(1)
        return last_kept > self.ranked_logits[:, -1]


def top_ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Logits and ids ``[R, count]`` of the first ``count >= 1`` tokens of each row, in rank order."""
    size = max(NUM_CANDIDATES, 2 * count)
    values, ids, exact = _first_ranked(logits, count, size)
    if not bool(exact.all()):
        values[~exact], ids[~exact], _ = _first_ranked(logits[~exact], count, logits.shape[1])
    return values, ids


def _first_ranked(logits: Tensor, count: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    candidates = Candidates.of(logits, size)
    count = min(count, candidates.ids.shape[1])
    exact = candidates.is_exact(torch.full((len(logits),), count, device=logits.device))
    ids = candidates.ids.gather(1, candidates.by_rank[:, :count])
    return candidates.ranked_logits[:, :count], ids, exact
