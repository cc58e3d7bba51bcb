"""Drawing a token from a row of logits, specified so exactly that another implementation chooses the same one.

Let ``x`` be a row's edited logits and ``peak`` their maximum. In float64, a token's distance is
``z = (x - peak) / temperature`` and its weight is ``w = round(exp(z) * 2**31)``, ties to even. Weights are
integers and a vocabulary has at most 2**22 tokens, so sums of weights are exact in float64 in *any* order:
vector widths, partial sums and neighbours in the batch cannot change a token.

Tokens rank by falling ``x``, equal ones by rising id. Every filter keeps the first tokens of that ranking:

- ``min_p`` keeps those with ``z >= log(min_p)``;
- ``top_k`` keeps the first ``top_k``;
- ``top_p`` keeps, of what those two left, with total weight ``W``, each token before which lies a weight of
  less than ``top_p * W``.

With ``W`` the total weight of the kept tokens and ``u = random_bits.uniforms(seed, position)``, the token is the
first kept one, *in vocabulary order*, at which the running sum of kept weights exceeds
``min(floor(u * W), W - 1)``.

No step sorts a vocabulary: rows are first tried with their few likeliest tokens, and where those are not enough
the border of what is kept is found by selection (``top_k``) or in a histogram of weights (``top_p``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.sampling import SamplingParams
from headrace.core.step import SampleSpec
from headrace.model.random_bits import uniforms
from headrace.model.ranking import NUM_CANDIDATES, Candidates

_WEIGHT_ONE = 2.0**31
_NUM_BINS = 4096
_BINS_PER_UNIT = _NUM_BINS / 22.5  # weights beyond a distance of 32 * log(2) = 22.2 are zero


@dataclass(frozen=True, slots=True)
class DrawRules:
    """How R rows draw, as columns; a filter that is off has a value that keeps everything."""

    temperature: Tensor  # [R] float64
    min_distance: Tensor  # [R] float64, log(min_p)
    top_k: Tensor  # [R] int64
    top_p: Tensor  # [R] float64
    uniform: Tensor  # [R] float64

    @classmethod
    def of(cls, specs: Sequence[SampleSpec], vocab_size: int, device: torch.device) -> DrawRules:
        params = [spec.params for spec in specs]
        numbers = uniforms([spec.seed for spec in specs], [spec.position for spec in specs])
        return cls(
            temperature=_column([p.temperature for p in params], device),
            min_distance=_column([math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params], device),
            top_k=torch.tensor([_top_k(p, vocab_size) for p in params], device=device),
            top_p=_column([p.top_p if p.top_p < 1.0 else math.inf for p in params], device),
            uniform=torch.from_numpy(numbers).to(device),
        )

    def take(self, rows: Tensor) -> DrawRules:
        """The rules of some rows, given by their indices."""
        return DrawRules(
            temperature=self.temperature[rows],
            min_distance=self.min_distance[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            uniform=self.uniform[rows],
        )

    def keep_everything(self, vocab_size: int) -> Tensor:
        """Which rows have no filter, ``[R]`` bool."""
        return (self.top_k >= vocab_size) & self.top_p.isinf() & self.min_distance.isinf()


def draw(logits: Tensor, rules: DrawRules) -> Tensor:
    """Draw a token id per row of edited ``logits`` ``[R, V]``, whose maxima must be finite: int64 ``[R]``."""
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    is_free = rules.keep_everything(logits.shape[1])
    for rows, draw_rows in ((is_free.nonzero(), _draw_free), ((~is_free).nonzero(), _draw_filtered)):
        index = rows.squeeze(1)
        if len(index):
            token_ids[index] = draw_rows(_select(logits, index), rules.take(index))
    return token_ids


def _draw_free(logits: Tensor, rules: DrawRules) -> Tensor:
    return _pick(_weights(_distances(logits, _peaks(logits), rules)), rules.uniform)


def _draw_filtered(logits: Tensor, rules: DrawRules) -> Tensor:
    """Draw among few candidates; rows that may keep more tokens than those are drawn one by one."""
    peaks = _peaks(logits)
    token_ids, is_settled = _draw_among(Candidates.of(logits, NUM_CANDIDATES), logits, peaks, rules)
    for row in (~is_settled).nonzero():  # [1]
        token_ids[row] = _draw_widely(logits[row], peaks[row], rules.take(row))
    return token_ids


def _draw_among(candidates: Candidates, logits: Tensor, peaks: Tensor, rules: DrawRules) -> tuple[Tensor, Tensor]:
    """Draw from ``candidates`` as if they were the vocabulary; also whether they were enough, per row."""
    ranked = candidates.ranked_logits
    distances = _distances(ranked, peaks, rules)
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    is_kept = (ranks < rules.top_k.unsqueeze(1)) & (distances >= rules.min_distance.unsqueeze(1)) & ranked.isfinite()
    weights = _weights(distances)
    kept_weights = weights * is_kept
    is_top_k_on = rules.top_k < logits.shape[1]
    masses = torch.where(is_top_k_on, kept_weights.sum(dim=1), _masses(logits, peaks, rules))
    is_mass_known = ~is_top_k_on | candidates.is_exact(is_kept.sum(dim=1))
    weights_before = kept_weights.cumsum(dim=1) - kept_weights
    is_kept &= weights_before < (rules.top_p * masses).unsqueeze(1)
    in_vocabulary_order = torch.zeros_like(weights).scatter_(1, candidates.by_rank, weights * is_kept)
    columns = _pick(in_vocabulary_order, rules.uniform)
    token_ids = candidates.ids.gather(1, columns.unsqueeze(1)).squeeze(1)
    return token_ids, is_mass_known & candidates.is_exact(is_kept.sum(dim=1))


def _masses(logits: Tensor, peaks: Tensor, rules: DrawRules) -> Tensor:
    """Weight kept by ``min_p``, ``[R]``, in rows where ``top_p`` takes a share of it; 1 elsewhere."""
    masses = torch.ones_like(rules.uniform)
    rows = ((rules.top_k >= logits.shape[1]) & rules.top_p.isfinite()).nonzero().squeeze(1)
    if len(rows):
        some = rules.take(rows)
        distances = _distances(_select(logits, rows), peaks[rows], some)
        is_kept = distances >= some.min_distance.unsqueeze(1)
        masses[rows] = _weights(distances).mul_(is_kept).sum(dim=1)
    return masses


def _draw_widely(logits: Tensor, peaks: Tensor, rules: DrawRules) -> Tensor:
    """Draw for one row ``[1, V]`` that may keep any number of tokens, ``[1]``."""
    distances = _distances(logits, peaks, rules)
    is_kept = distances >= rules.min_distance
    if rules.top_k < logits.shape[1]:
        is_kept &= _first_by_count(logits[0], int(rules.top_k))
    weights = _weights(distances.clone()).mul_(is_kept)
    if rules.top_p.isfinite():
        limit = rules.top_p * weights.sum()
        weights *= _first_by_weight(logits[0], distances[0], weights[0], limit)
    return _pick(weights, rules.uniform)


def _first_by_count(logits: Tensor, count: int) -> Tensor:
    """Which tokens of ``[V]`` are the first ``count`` of the ranking, bool ``[V]``."""
    border = logits.kthvalue(len(logits) - count + 1).values
    is_first = logits > border
    tied = (logits == border).nonzero().squeeze(1)
    is_first[tied[: count - int(is_first.sum())]] = True
    return is_first


def _first_by_weight(logits: Tensor, distances: Tensor, weights: Tensor, limit: Tensor) -> Tensor:
    """Which tokens of ``[V]`` have less than ``limit`` weight before them in the ranking, bool ``[V]``.

    A histogram over distances finds the one bin in which the limit is reached; only that bin is sorted.
    """
    bins = (distances * -_BINS_PER_UNIT).clamp_(max=_NUM_BINS - 1).long()
    weight_through = torch.bincount(bins, weights, _NUM_BINS).cumsum(dim=0)
    border_bin = torch.searchsorted(weight_through, limit)
    is_first = bins < border_bin
    border = (bins == border_bin).nonzero().squeeze(1)
    border = border[logits[border].sort(descending=True, stable=True).indices]
    border_weights = weights[border]
    weights_before = (weights * is_first).sum() + border_weights.cumsum(dim=0) - border_weights
    is_first[border[weights_before < limit]] = True
    return is_first


def _peaks(logits: Tensor) -> Tensor:
    return logits.amax(dim=1, keepdim=True).double()


def _distances(logits: Tensor, peaks: Tensor, rules: DrawRules) -> Tensor:
    return logits.double().sub_(peaks).div_(rules.temperature.unsqueeze(1))


def _weights(distances: Tensor) -> Tensor:
    """Integer weights of tokens at ``distances``, which are overwritten."""
    return distances.exp_().mul_(_WEIGHT_ONE).round_()


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """First column of each row whose running sum exceeds ``uniform`` times the row's sum, ``[R]`` int64."""
    running = weights.cumsum(dim=1)
    totals = running[:, -1]
    # u < 1, but u * W may round up to W itself.
    targets = torch.minimum((uniform * totals).floor_(), totals - 1)
    return torch.searchsorted(running, targets.unsqueeze(1), right=True).squeeze(1)


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    return min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)


def _select(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some rows, without a copy when they are all of them."""
    return tensor if len(rows) == len(tensor) else tensor[rows]
