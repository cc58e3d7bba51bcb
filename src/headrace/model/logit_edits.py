"""What a request changes about its logits before a token is chosen: forbidden tokens, biases, penalties.

Meanings are vLLM's, and so is the order: token mask, allowed ids, bad words, suppressed ids, logit bias,
then repetition, frequency and presence penalty. Ids outside the vocabulary name no token here and change
nothing; requests are checked against the vocabulary long before (``SamplingParams.check_token_ids``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.step import SampleSpec, TokenMask


def edit_logits(logits: Tensor, specs: Sequence[SampleSpec], token_mask: TokenMask | None) -> Tensor:
    """Logits ``[S, V]`` as the requests want them; the argument itself, untouched, if nobody wants a change."""
    edited_rows = [row for row, spec in enumerate(specs) if _wants_edits(spec)]
    if token_mask is None and not edited_rows:
        return logits
    edited = logits.clone()
    if token_mask is not None:
        edited.masked_fill_(forbidden_by_mask(logits, token_mask), -math.inf)
    for row in edited_rows:
        _forbid(edited[row], specs[row])
        _apply_bias(edited[row], specs[row].params.logit_bias)
        _apply_penalties(edited[row], specs[row])
    return edited


def _wants_edits(spec: SampleSpec) -> bool:
    params = spec.params
    return bool(
        params.needs_history
        or params.logit_bias
        or params.allowed_token_ids
        or spec.suppressed_token_ids
        or spec.bad_word_token_ids
    )


def forbidden_by_mask(logits: Tensor, token_mask: TokenMask) -> Tensor:
    """Where the mask of some logits ``[S, V]`` forbids their tokens, as booleans of the same shape."""
    little_endian = np.ascontiguousarray(token_mask, dtype="<i4")
    allowed = np.unpackbits(little_endian.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    return torch.from_numpy(allowed == 0).to(logits.device)


def _forbid(row: Tensor, spec: SampleSpec) -> None:
    if spec.params.allowed_token_ids:
        allowed = _token_index(row, spec.params.allowed_token_ids)
        kept = row[allowed]
        row.fill_(-math.inf)
        row[allowed] = kept
    if forbidden := spec.forbidden_token_ids:
        row[_token_index(row, forbidden)] = -math.inf


def _apply_bias(row: Tensor, logit_bias: dict[int, float]) -> None:
    for token_id, bias in logit_bias.items():
        if token_id < len(row):
            row[token_id] += bias


def _apply_penalties(row: Tensor, spec: SampleSpec) -> None:
    """Penalise what was seen: repetition in prompt and output, frequency and presence in the output only."""
    params = spec.params
    if params.repetition_penalty != 1.0:
        seen = _token_index(row, spec.token_ids)
        values = row[seen]
        penalty = params.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        output = _known_tokens(spec.token_ids[spec.num_prompt_tokens :], len(row))
        ids, counts = np.unique(output, return_counts=True)
        index = torch.from_numpy(ids).to(row.device)
        row[index] -= params.frequency_penalty * torch.from_numpy(counts.astype(np.float32)).to(row.device)
        row[index] -= params.presence_penalty


def _token_index(row: Tensor, token_ids: Iterable[int]) -> Tensor:
    return torch.from_numpy(_known_tokens(token_ids, len(row))).to(row.device)


def _known_tokens(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    ids = np.fromiter(token_ids, dtype=np.int64)
    return ids[(ids >= 0) & (ids < vocab_size)]
