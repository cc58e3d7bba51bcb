"""Philox against its published vectors, and the numbers made of it."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.model.random_bits import philox4x32, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter: str, key: str, expected: str) -> None:
    words = philox4x32(_words(counter), _words(key))
    assert words.tolist() == _words(expected).tolist()


def test_many_counters_are_encrypted_as_one_would_be() -> None:
    counters = np.arange(40, dtype=np.uint64).reshape(4, 10)
    keys = np.arange(100, 120, dtype=np.uint64).reshape(2, 10)
    together = philox4x32(counters, keys)
    for column in range(10):
        alone = philox4x32(counters[:, column : column + 1], keys[:, column : column + 1])
        assert together[:, column : column + 1].tolist() == alone.tolist()


def test_a_uniform_is_made_of_the_upper_53_of_the_first_64_bits() -> None:
    bits = (0xE169C58D << 32) | 0x6627E8D5
    assert uniforms([0], [0])[0] == (bits >> 11) / 2**53


def test_seed_and_position_each_matter_over_their_whole_width() -> None:
    seeds = [0, 1, 2**32, 2**63, 2**64 - 1, 0, 0, 0]
    positions = [0, 0, 0, 0, 0, 1, 2**31 - 1, 2**32]
    assert len(set(uniforms(seeds, positions).tolist())) == len(seeds)


def test_a_negative_seed_is_taken_modulo_two_to_the_64() -> None:
    assert uniforms([-1], [7]).tolist() == uniforms([2**64 - 1], [7]).tolist()


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    numbers = uniforms(list(range(200)) * 100, [p for p in range(100) for _ in range(200)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=50, range=(0.0, 1.0))
    chi_square = float(((counts - 400.0) ** 2 / 400.0).sum())
    assert chi_square < 94.6  # the 0.9999 quantile for 49 degrees of freedom


def _words(text: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint64)
