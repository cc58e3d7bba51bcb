"""Choosing next tokens from logits, row by row, as exactly specified as arithmetic allows.

A row's token is a function of its logits and its ``SampleSpec`` alone. The order of operations is vLLM's:

1. Reported log-probabilities come from the logits as they are.
2. ``logit_edits``: token mask, allowed ids, bad words, suppressed ids, logit bias, penalties; in float32.
3. Greedy rows (``temperature`` 0 or ``top_k`` 1) take the largest edited logit, the lowest id if several.
4. Other rows draw a token by temperature, min-p, top-k and top-p: ``draw`` says exactly how.

Does not know sequences, blocks or the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from headrace.core.request import TokenLogprobs
from headrace.core.sampled_tokens import MAX_VOCAB_SIZE, NO_TOKEN, NOT_FINITE, NOTHING_LEFT, SampledTokens
from headrace.core.step import SampleSpec, TokenMask
from headrace.model.draw import DrawRules, draw
from headrace.model.logit_edits import edit_logits, forbidden_by_mask
from headrace.model.logprobs import MAX_ROWS_AT_ONCE, token_logprobs

_MAX_WEIGHTS_AT_ONCE = 1 << 19
"""Float64 numbers per array while drawing (4 MiB, to stay in a cache): more rows are drawn in turns."""


class Sampler:
    """Samples ids in ``[0, vocab_size)``; logits may have more columns (padding), which are never chosen."""

    def __init__(self, vocab_size: int) -> None:
        assert 1 <= vocab_size <= MAX_VOCAB_SIZE
        self._vocab_size = vocab_size

    def sample(self, logits: Tensor, specs: Sequence[SampleSpec], token_mask: TokenMask | None) -> SampledTokens:
        """Choose one token per row of ``logits`` ``[S, >= vocab_size]`` float32, which are left unchanged.

        An unusable row (NaN or +inf, or nothing left to choose) fails alone. Cost: one pass over the logits
        if all rows are greedy; about ten over the rows that draw from a whole vocabulary.
        """
        logits = logits[:, : self._vocab_size]
        failed = dict.fromkeys(_unusable_rows(logits), NOT_FINITE)
        edited = edit_logits(logits, specs, token_mask)
        if edited is not logits:
            failed = dict.fromkeys(_unusable_rows(edited), NOTHING_LEFT) | failed
        token_ids = self._choose(edited, specs, [row for row in range(len(specs)) if row not in failed])
        mass = _masked_mass(logits, token_mask, failed)
        return SampledTokens(token_ids, _reported_logprobs(logits, token_ids, specs), failed, mass)

    def _choose(self, logits: Tensor, specs: Sequence[SampleSpec], usable_rows: list[int]) -> list[int]:
        greedy_rows = [row for row in usable_rows if specs[row].params.is_greedy]
        random_rows = [row for row in usable_rows if not specs[row].params.is_greedy]
        token_ids = [NO_TOKEN] * len(specs)
        if greedy_rows:
            _put(token_ids, greedy_rows, _take(logits, greedy_rows).argmax(dim=1))
        num_at_once = max(1, _MAX_WEIGHTS_AT_ONCE // self._vocab_size)
        for start in range(0, len(random_rows), num_at_once):
            rows = random_rows[start : start + num_at_once]
            rules = DrawRules.of([specs[row] for row in rows], self._vocab_size, logits.device)
            _put(token_ids, rows, draw(_take(logits, rows), rules))
        return token_ids


def _masked_mass(logits: Tensor, token_mask: TokenMask | None, failed: Mapping[int, str]) -> list[float]:
    """The share of each row's probability that lies on tokens the mask forbids; 0 for a row that is not finite."""
    if token_mask is None:
        return [0.0] * len(logits)
    shares = (logits.softmax(dim=1) * forbidden_by_mask(logits, token_mask)).sum(dim=1).tolist()
    return [0.0 if failed.get(row) == NOT_FINITE else share for row, share in enumerate(shares)]


def _unusable_rows(logits: Tensor) -> list[int]:
    """Rows without a finite largest logit; ``amax`` hands NaN on, so one number per row tells."""
    return [row for row, is_finite in enumerate(logits.amax(dim=1).isfinite().tolist()) if not is_finite]


def _reported_logprobs(logits: Tensor, token_ids: list[int], specs: Sequence[SampleSpec]) -> dict[int, TokenLogprobs]:
    wanted = {
        row: spec.params.logprobs
        for row, spec in enumerate(specs)
        if spec.params.logprobs is not None and token_ids[row] != NO_TOKEN
    }
    rows = list(wanted)
    reported: list[TokenLogprobs] = []
    for start in range(0, len(rows), MAX_ROWS_AT_ONCE):
        some = rows[start : start + MAX_ROWS_AT_ONCE]
        chosen = [token_ids[row] for row in some]
        reported += token_logprobs(_take(logits, some), chosen, [wanted[row] for row in some])
    entries = dict(zip(rows, reported, strict=True))
    for row in [row for row in rows if specs[row].params.logprob_token_ids]:
        entries[row] = _with_named(entries[row], logits[row], specs[row].params.logprob_token_ids)
    return entries


def _with_named(entry: TokenLogprobs, logits: Tensor, token_ids: tuple[int, ...]) -> TokenLogprobs:
    """``entry`` with the log-probabilities of these tokens of the row ``[V]``."""
    values = (logits[list(token_ids)] - logits.logsumexp(dim=0)).tolist()
    return TokenLogprobs(entry.token_id, entry.logprob, entry.rank, tuple(zip(token_ids, values, strict=True)))


def _take(tensor: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a tensor, without a copy when they are all of them."""
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _put(token_ids: list[int], rows: list[int], drawn: Tensor) -> None:
    for row, token_id in zip(rows, drawn.tolist(), strict=True):
        token_ids[row] = token_id
