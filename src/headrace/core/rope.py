"""Rotary position embedding as facts and frequencies (Su et al., "RoFormer", arXiv:2104.09864).

Every backend takes its frequencies from here, so that two backends cannot disagree about a scaling rule.
Knows nothing of tensors of a model: applying the rotation is the backends' work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

Float64Array = NDArray[np.float64]


class LinearScaling(msgspec.Struct, frozen=True, tag="linear"):
    """Positions are divided by ``factor`` (position interpolation, arXiv:2306.15595)."""

    factor: float

    def apply(self, frequencies: Float64Array, theta: float) -> Float64Array:
        return frequencies / self.factor


class Llama3Scaling(msgspec.Struct, frozen=True, tag="llama3"):
    """Llama 3.1's rule: long wavelengths are divided by ``factor``, short ones kept, the band between blended.

    Wavelengths are compared with ``original_max_position / low_freq_factor`` and ``/ high_freq_factor``
    (the "Llama 3 Herd of Models" release, arXiv:2407.21783).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, frequencies: Float64Array, theta: float) -> Float64Array:
        periods = self.original_max_position * frequencies / (2 * math.pi)  # turns within the trained context
        kept = (periods - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


class YarnScaling(msgspec.Struct, frozen=True, tag="yarn"):
    """YaRN's "NTK-by-parts" interpolation and its attention temperature (arXiv:2309.00071).

    Dimensions that turn more than ``beta_fast`` times within the trained context are kept, those that
    turn fewer than ``beta_slow`` times are divided by ``factor``.
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    attention_factor: float

    def apply(self, frequencies: Float64Array, theta: float) -> Float64Array:
        num_pairs = len(frequencies)
        low = max(math.floor(self._pair_with_turns(self.beta_fast, num_pairs, theta)), 0)
        high = min(math.ceil(self._pair_with_turns(self.beta_slow, num_pairs, theta)), 2 * num_pairs - 1)
        width = max(high - low, 0.001)
        interpolated = np.clip((np.arange(num_pairs) - low) / width, 0.0, 1.0)
        return frequencies * (1.0 - interpolated + interpolated / self.factor)

    def _pair_with_turns(self, turns: float, num_pairs: int, theta: float) -> float:
        """Index (fractional) of the pair that turns ``turns`` times within the trained context."""
        return num_pairs * math.log(self.original_max_position / (turns * 2 * math.pi)) / math.log(theta)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How one layer rotates its queries and keys.

    The first ``rotary_dim`` of a head's dimensions turn, as pairs ``(i, i + rotary_dim / 2)``. Raises
    ``ConfigError`` for values no frequencies can be made of.
    """

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.theta) and 1.0 < self.theta <= 1e12):
            raise ConfigError(f"rope_theta is {self.theta} but must be above 1 and at most 1e12", "rope_theta")
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ConfigError(f"the rotary dimension is {self.rotary_dim} but must be even, 2 or more", "rotary_dim")
        if self.scaling is not None:
            _check_scaling(self.scaling)

    @property
    def attention_factor(self) -> float:
        """Factor on the rotated queries and on the rotated keys; 1 except for YaRN."""
        return self.scaling.attention_factor if isinstance(self.scaling, YarnScaling) else 1.0

    def inverse_frequencies(self) -> Float64Array:
        """Radians per position of each pair, ``[rotary_dim / 2]``."""
        frequencies = self.theta ** (-np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim)
        if self.scaling is None:
            return frequencies
        return self.scaling.apply(frequencies, self.theta)


def _check_scaling(scaling: RopeScaling) -> None:
    _check_between("factor", scaling.factor, 1e-3, 1e6)
    match scaling:
        case Llama3Scaling():
            _check_between("low_freq_factor", scaling.low_freq_factor, 1e-6, 1e6)
            _check_between("high_freq_factor", scaling.high_freq_factor, 1e-6, 1e6)
            _check_between("original_max_position_embeddings", scaling.original_max_position, 1, 1 << 27)
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise ConfigError(
                    f"rope scaling: high_freq_factor {scaling.high_freq_factor} must be above "
                    f"low_freq_factor {scaling.low_freq_factor}",
                    "rope_scaling.high_freq_factor",
                )
        case YarnScaling():
            _check_between("beta_fast", scaling.beta_fast, 1e-6, 1e6)
            _check_between("beta_slow", scaling.beta_slow, 1e-6, 1e6)
            _check_between("attention_factor", scaling.attention_factor, 1e-3, 1e3)
            _check_between("original_max_position_embeddings", scaling.original_max_position, 1, 1 << 27)
        case LinearScaling():
            pass


def _check_between(field: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(
            f"rope scaling: {field} is {value} but must be between {low:g} and {high:g}", f"rope_scaling.{field}"
        )
