"""How long a step takes: a few coefficients over a few features, learned while the engine runs.

Owns what a step's cost depends on (``StepFeatures``), the cost as a function of it (``StepCosts``) and the
fitting of one to the other (``StepCostModel``). It does not know where the seconds come from: a CPU, a GPU or
a table, real or simulated.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.step import StepPlan

KNEES: Final = (0, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of tokens that may fit under reading the weights once; the fit keeps to the best of them."""

MIN_OBSERVED: Final = 16
"""Steps after which a model that was told nothing is believed."""

NUM_LEARNED_FROM: Final = 256
LEARN_EVERY: Final = 4
"""After ``NUM_LEARNED_FROM`` steps only every fourth teaches: by then it is drift that is followed."""

_FORGETTING: Final = 0.998
_DRIFT_RATE: Final = 0.1
_MAX_DRIFT: Final = 2.0
_MIN_SECONDS: Final = 1e-6
_OUTLIER: Final = 4.0
"""A step this many times slower than foretold was disturbed by something else and teaches little."""

_SCALE: Final = np.array([1.0, 64.0, 16.0, 16384.0, 65536.0])
"""Typical sizes of the terms' features, so that all coefficients are of one order while fitting."""


class StepFeatures(msgspec.Struct, frozen=True, array_like=True):
    """What the duration of a step depends on.

    ``num_decodes`` sequences compute one token each over ``decode_context`` tokens of context in all.
    ``num_new_tokens`` are computed in longer chunks, and ``chunk_context`` is the number of (token, earlier
    token) pairs their attention looks at.
    """

    num_decodes: int
    decode_context: int
    num_new_tokens: int
    chunk_context: int

    @classmethod
    def of(cls, plan: StepPlan) -> StepFeatures:
        """Features of a plan. Costs O(sequences)."""
        num_decodes = decode_context = num_new_tokens = chunk_context = 0
        for item in plan.scheduled:
            count = len(item.token_ids)
            if count == 1:
                num_decodes += 1
                decode_context += item.start + 1
            else:
                num_new_tokens += count
                chunk_context += chunk_pairs(item.start, count)
        return cls(num_decodes, decode_context, num_new_tokens, chunk_context)

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.num_new_tokens


def chunk_pairs(start: int, num_tokens: int) -> int:
    """(Token, earlier token) pairs of a causal chunk ``[start, start + num_tokens)``, itself included."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step as a function of its features.

    ``fixed_s + token_s * max(tokens - num_free_tokens, 0) + decode_s * decodes + context_s * decode context
    + pair_s * chunk context``. Reading the weights takes the same time for one token as for
    ``num_free_tokens``; that time is part of ``fixed_s``. With ``Tw = token_s * num_free_tokens`` this is the
    roofline ``max(Tw, token_s * tokens) + rest``. Immutable and serialisable: a device in a simulation, or the
    memory of an earlier run.
    """

    fixed_s: float
    num_free_tokens: float
    token_s: float
    decode_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0

    @classmethod
    def roofline(
        cls, weight_read_s: float, token_s: float, *, context_s: float, pair_s: float, overhead_s: float
    ) -> StepCosts:
        """``max(weight_read_s, token_s * tokens) + context_s * context + pair_s * pairs + overhead_s``."""
        return cls(
            fixed_s=weight_read_s + overhead_s,
            num_free_tokens=weight_read_s / token_s,
            token_s=token_s,
            context_s=context_s,
            pair_s=pair_s,
        )

    def slowed(self, factor: float) -> StepCosts:
        """The same machine when everything on it takes ``factor`` times as long."""
        return StepCosts(
            fixed_s=self.fixed_s * factor,
            num_free_tokens=self.num_free_tokens,
            token_s=self.token_s * factor,
            decode_s=self.decode_s * factor,
            context_s=self.context_s * factor,
            pair_s=self.pair_s * factor,
        )

    def predict(self, features: StepFeatures) -> float:
        """Seconds of a step with these features."""
        return self.decodes_s(features.num_decodes, features.decode_context) + self.chunk_s(
            features.num_decodes, features.num_new_tokens, features.chunk_context
        )

    def decodes_s(self, num_decodes: int, decode_context: int) -> float:
        """Seconds of a step that computes one token of each of ``num_decodes`` sequences and nothing else.

        Never 0: a fit of few steps can say so, and rates are divided by it.
        """
        over = max(num_decodes - self.num_free_tokens, 0.0)
        seconds = self.fixed_s + self.token_s * over + self.decode_s * num_decodes + self.context_s * decode_context
        return max(seconds, _MIN_SECONDS)

    def chunk_s(self, num_decodes: int, num_new_tokens: int, chunk_context: int) -> float:
        """Seconds that ``num_new_tokens`` add to a step with ``num_decodes``."""
        room = max(self.num_free_tokens - num_decodes, 0.0)
        return self.token_s * max(num_new_tokens - room, 0.0) + self.pair_s * chunk_context

    def num_affordable_tokens(self, seconds: float, num_decodes: int, context: int) -> int:
        """Most tokens of a chunk that starts after ``context`` tokens and adds at most ``seconds`` to a step."""
        room = max(self.num_free_tokens - num_decodes, 0.0)
        half_pair_s = self.pair_s / 2
        num_free = _largest_root(half_pair_s, self.pair_s * context, seconds)
        if num_free <= room:
            return int(num_free)
        return int(_largest_root(half_pair_s, self.token_s + self.pair_s * context, seconds + self.token_s * room))

    def marginal_prefill_s(self, context: int = 0) -> float:
        """Seconds that one more prompt token costs once the weights are paid for, after ``context`` tokens."""
        return self.token_s + self.pair_s * context

    def prefill_s(self, start: int, end: int) -> float:
        """Seconds of computing positions ``[start, end)`` beside other work that pays for the weights."""
        return self.token_s * (end - start) + self.pair_s * chunk_pairs(start, end - start)


class StepCostModel:
    """Learns ``StepCosts`` from the steps that run, by recursive least squares with forgetting.

    The roofline's knee makes the cost non-linear, but for a given knee it is linear; so one fit is kept for
    each of ``KNEES`` and the one that has foretold best of late is used. Errors are relative: a short step
    counts as much as a long one. Coefficients are kept from falling below zero, as no work takes negative
    time. Ljung, "System Identification" (1999), section 11.2. ``observe`` costs some tens of microseconds.

    What a step costs changes slowly, how fast a shared machine runs within seconds. The latter is a factor of its
    own, how much longer the last ten or so steps took than the fit says, and part of ``costs``.
    """

    def __init__(self, costs: StepCosts | None = None) -> None:
        seed = _UNKNOWN if costs is None else costs
        self.costs = seed
        self._fitted = seed
        self._slowness = 1.0
        self.num_observed = 0
        self.median_error = 0.0
        self._is_seeded = costs is not None
        self._knees = np.array(KNEES, dtype=np.float64) if costs is None else _knees_with(seed.num_free_tokens)
        spread = 1.0 if costs is None else 0.05
        self._theta = np.tile(_theta(seed), (len(self._knees), 1))
        size = _SCALE.size
        typical = np.maximum(self._theta[0], 1e-5)
        self._covariance = np.tile(np.diag((spread * typical) ** 2), (len(self._knees), 1, 1)).reshape(-1, size, size)
        self._errors = np.abs(self._knees - seed.num_free_tokens) * 1e-6

    @property
    def is_known(self) -> bool:
        """Whether predictions rest on anything."""
        return self._is_seeded or self.num_observed >= MIN_OBSERVED

    def predict(self, features: StepFeatures) -> float:
        """Seconds a step with these features is expected to take."""
        return self.costs.predict(features)

    def observe(self, features: StepFeatures, seconds: float) -> None:
        """Learn that a step with these features took ``seconds``; durations that mean nothing are ignored."""
        if not _MIN_SECONDS <= seconds < math.inf:
            return
        predicted = self.costs.predict(features)
        self._note_error(abs(predicted - seconds) / seconds)
        self.num_observed += 1
        trust = 1.0
        if self.num_observed > 64 and seconds > _OUTLIER * predicted > 0:
            trust = (predicted / seconds) ** 2
        if self.num_observed <= NUM_LEARNED_FROM or self.num_observed % LEARN_EVERY == 0:
            self._fit(features, seconds, trust)
            self._fitted = self._best_fit()
        self._follow(features, seconds)
        self.costs = self._fitted.slowed(self._slowness)

    def _note_error(self, error: float) -> None:
        """Move the running median a step towards ``error`` (Robbins-Monro on the sign of the difference)."""
        if self.num_observed == 0:
            self.median_error = min(error, 1.0)
            return
        rate = max(0.02, 1.0 / (self.num_observed + 1)) * max(self.median_error, 0.005)
        self.median_error += rate if error > self.median_error else -rate

    def _follow(self, features: StepFeatures, seconds: float) -> None:
        """Move the slowness towards that of this step, once the fit can tell."""
        if self.is_known:
            slowness = seconds / max(self._fitted.predict(features), _MIN_SECONDS)
            self._slowness += _DRIFT_RATE * (min(max(slowness, 1 / _MAX_DRIFT), _MAX_DRIFT) - self._slowness)

    def _fit(self, features: StepFeatures, seconds: float, trust: float) -> None:
        rows = self._rows(features) / seconds  # relative errors: every target is 1  # [K, F]
        residual = 1.0 - np.einsum("kf,kf->k", self._theta, rows)
        self._errors = 0.98 * self._errors + 0.02 * np.minimum(np.abs(residual), 1.0)
        noise = 0.0025 / trust  # variance of a step's duration around its mean, relative to it
        spread = np.einsum("kfg,kg->kf", self._covariance, rows)
        gain = spread / (noise + np.einsum("kf,kf->k", rows, spread))[:, None]
        self._theta = np.maximum(self._theta + gain * residual[:, None], 0.0)
        self._covariance -= gain[:, :, None] * spread[:, None, :]
        if self.num_observed > 64:
            self._forget()

    def _forget(self) -> None:
        """Widen what is known a little, but never beyond the doubt of the beginning (no wind-up)."""
        widened = self._covariance / _FORGETTING
        diagonal = np.einsum("kff->kf", widened)
        if (diagonal < self._theta**2 + 1e-12).all():
            self._covariance = widened

    def _rows(self, features: StepFeatures) -> NDArray[np.float64]:
        rows = np.empty((len(self._knees), _SCALE.size))
        rows[:, 0] = 1.0
        rows[:, 1] = np.maximum(features.num_tokens - self._knees, 0.0)
        rows[:, 2] = features.num_decodes
        rows[:, 3] = features.decode_context
        rows[:, 4] = features.chunk_context
        scaled: NDArray[np.float64] = rows / _SCALE
        return scaled

    def _best_fit(self) -> StepCosts:
        best = int(np.argmin(self._errors))
        fixed, token, decode, context, pair = (self._theta[best] / _SCALE).tolist()
        return StepCosts(
            fixed_s=fixed,
            num_free_tokens=float(self._knees[best]),
            token_s=token,
            decode_s=decode,
            context_s=context,
            pair_s=pair,
        )


def _largest_root(quadratic: float, linear: float, total: float) -> float:
    """The ``x >= 0`` with ``quadratic * x**2 + linear * x = total``, all of them >= 0."""
    if total <= 0:
        return 0.0
    slope = linear + math.sqrt(linear * linear + 4 * quadratic * total)
    return 2 * total / slope if slope > 0 else MAX_TOKENS


MAX_TOKENS: Final = float(1 << 24)
"""Stands for "as many as you like" where tokens cost nothing."""

_UNKNOWN: Final = StepCosts(fixed_s=0.01, num_free_tokens=0.0, token_s=1e-3, decode_s=1e-4, context_s=1e-8, pair_s=1e-8)
"""What is assumed of a machine nothing is known of: cautious, and soon corrected."""


def _theta(costs: StepCosts) -> NDArray[np.float64]:
    values = np.array([costs.fixed_s, costs.token_s, costs.decode_s, costs.context_s, costs.pair_s])
    scaled: NDArray[np.float64] = values * _SCALE
    return scaled


def _knees_with(knee: float) -> NDArray[np.float64]:
    return np.array(sorted({float(value) for value in KNEES} | {knee}))
