"""Counter-based random numbers: a pure function of ``(seed, position)``, with no generator state anywhere.

Owns Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
Does not know what the numbers are used for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Uint64Array = NDArray[np.uint64]

_NUM_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_INCREMENTS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def philox4x32(counter: Uint64Array, key: Uint64Array) -> Uint64Array:
    """Encrypt counters ``[4, N]`` with keys ``[2, N]``; every entry is a 32-bit word held in 64 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0  # 32 x 32 bits fit in 64
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _WORD_BITS) ^ c1 ^ k0,
            product1 & _LOW_WORD,
            (product0 >> _WORD_BITS) ^ c3 ^ k1,
            product0 & _LOW_WORD,
        )
        k0 = (k0 + _KEY_INCREMENTS[0]) & _LOW_WORD
        k1 = (k1 + _KEY_INCREMENTS[1]) & _LOW_WORD
    return np.stack([c0, c1, c2, c3])


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in ``[0, 1)`` per ``(seed, position)``, a multiple of 2**-53.

    Philox is keyed by the seed modulo 2**64 and counts ``(position, 0)`` as two 64-bit numbers, low word
    first; the result is the upper 53 bits of the first 64 output bits (word 1 above word 0).
    """
    seed = np.array([value & _MASK_64 for value in seeds], dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    nothing = np.zeros_like(position)
    counter = np.stack([position & _LOW_WORD, position >> _WORD_BITS, nothing, nothing])
    words = philox4x32(counter, np.stack([seed & _LOW_WORD, seed >> _WORD_BITS]))
    bits = (words[1] << _WORD_BITS) | words[0]
    numbers: NDArray[np.float64] = np.ldexp((bits >> np.uint64(11)).astype(np.float64), -53)
    return numbers
