from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.core.rope import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling

LLAMA31 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)


def test_plain_frequencies_fall_geometrically_from_one() -> None:
    frequencies = RopeConfig(theta=10_000.0, rotary_dim=8).inverse_frequencies()
    assert frequencies == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_linear_scaling_divides_every_frequency() -> None:
    plain = RopeConfig(10_000.0, 8)
    scaled = RopeConfig(10_000.0, 8, LinearScaling(4.0))
    assert scaled.inverse_frequencies() == pytest.approx(plain.inverse_frequencies() / 4)


def test_llama3_scaling_keeps_short_wavelengths_divides_long_ones_and_blends_between() -> None:
    plain = RopeConfig(500_000.0, 128).inverse_frequencies()
    scaled = RopeConfig(500_000.0, 128, LLAMA31).inverse_frequencies()
    wavelengths = 2 * math.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    assert scaled[short] == pytest.approx(plain[short])
    assert scaled[long] == pytest.approx(plain[long] / 8)
    between = ~short & ~long
    assert between.any()
    assert np.all((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8))


def test_llama3_scaling_is_continuous_in_the_middle_of_the_band() -> None:
    turns = 2.5  # halfway between 1 and 4 turns within 8192 positions
    frequency = np.array([2 * math.pi * turns / 8192])
    assert LLAMA31.apply(frequency, 0.0) == pytest.approx(frequency * (0.5 + 0.5 / 8))


def test_yarn_keeps_fast_dimensions_and_divides_slow_ones() -> None:
    yarn = YarnScaling(4.0, original_max_position=4096, beta_fast=32.0, beta_slow=1.0, attention_factor=1.1386)
    plain = RopeConfig(10_000.0, 128).inverse_frequencies()
    config = RopeConfig(10_000.0, 128, yarn)
    scaled = config.inverse_frequencies()
    turns = 4096 * plain / (2 * math.pi)
    assert scaled[turns > 40] == pytest.approx(plain[turns > 40])
    assert scaled[turns < 0.8] == pytest.approx(plain[turns < 0.8] / 4)
    assert config.attention_factor == 1.1386


def test_only_yarn_changes_the_attention_temperature() -> None:
    assert RopeConfig(10_000.0, 8, LLAMA31).attention_factor == 1.0
    assert RopeConfig(10_000.0, 8).attention_factor == 1.0


@pytest.mark.parametrize("theta", [0.0, 1.0, -5.0, math.nan, math.inf, 1e13])
def test_a_base_no_frequencies_can_be_made_of_is_refused(theta: float) -> None:
    with pytest.raises(ConfigError, match="rope_theta"):
        RopeConfig(theta, 8)


@pytest.mark.parametrize("rotary_dim", [0, -2, 7])
def test_an_odd_or_empty_rotary_dimension_is_refused(rotary_dim: int) -> None:
    with pytest.raises(ConfigError, match="rotary dimension"):
        RopeConfig(10_000.0, rotary_dim)


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        (LinearScaling(0.0), "factor"),
        (LinearScaling(math.nan), "factor"),
        (Llama3Scaling(8.0, 4.0, 4.0, 8192), "high_freq_factor"),
        (Llama3Scaling(8.0, 0.0, 4.0, 8192), "low_freq_factor"),
        (Llama3Scaling(8.0, 1.0, 4.0, 0), "original_max_position_embeddings"),
        (YarnScaling(4.0, 4096, 0.0, 1.0, 1.0), "beta_fast"),
        (YarnScaling(4.0, 4096, 32.0, -1.0, 1.0), "beta_slow"),
        (YarnScaling(4.0, 4096, 32.0, 1.0, math.inf), "attention_factor"),
    ],
)
def test_scaling_values_out_of_bounds_are_refused_by_name(scaling: object, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RopeConfig(10_000.0, 8, scaling)  # type: ignore[arg-type]
    assert caught.value.field == f"rope_scaling.{field}"
