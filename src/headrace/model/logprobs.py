"""Log-probabilities as they are reported: of one token per row, with the likeliest alternatives.

Knows nothing of sampling: what is reported comes from the logits as the model gave them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.core.request import TokenLogprobs
from headrace.model.ranking import top_ranked

MAX_ROWS_AT_ONCE = 64
"""Rows of logits a caller should bring at most, so that memory is bounded by rows x vocabulary."""


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Report token ``token_ids[r]`` and the ``num_top[r]`` likeliest tokens of each row of ``[R, V]`` logits.

    The rank is one more than the number of likelier tokens. Rows must be free of NaN and +inf.
    """
    tokens = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    normalizer = logits.logsumexp(dim=1, keepdim=True)
    chosen = logits.gather(1, tokens)
    ranks = ((logits > chosen).sum(dim=1) + 1).tolist()
    values = (chosen - normalizer).squeeze(1).tolist()
    tops = _top_pairs(logits, normalizer, num_top)
    return [
        TokenLogprobs(token_id=token, logprob=value, rank=rank, top=top)
        for token, value, rank, top in zip(token_ids, values, ranks, tops, strict=True)
    ]


def _top_pairs(logits: Tensor, normalizer: Tensor, num_top: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    most = max(num_top, default=0)
    if most == 0:
        return [()] * len(num_top)
    top_logits, top_ids = top_ranked(logits, most)
    rows = zip(top_ids.tolist(), (top_logits - normalizer).tolist(), num_top, strict=True)
    return [tuple(zip(ids[:count], values[:count], strict=True)) for ids, values, count in rows]
