"""Stored blocks to float32, in vectorised NumPy. Knows bytes and types, not files or tensors.

Each type has a record layout (``scale``, ``quants`` ...) and a function that writes one row of float32 per
block. The layouts and formulas are those of ggml's block formats; the arithmetic is done in float32 in the
same order as its reference code, so results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.checkpoint.tensor_type import TensorType

Float32Array = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
_Records = NDArray[Any]
_Unpack = Callable[[_Records, Float32Array], None]

# Stored bytes turned into float32 at a time: small enough that temporaries stay in the L2 cache.
_CHUNK_BYTES = 128 << 10


class _Format(NamedTuple):
    layout: np.dtype[Any]
    unpack: _Unpack


def dequantize(data: ByteArray, dtype: TensorType) -> Float32Array:
    """Fresh, writable float32 array of all elements of ``data``, which must be whole blocks.

    Raises ``KeyError`` for a type not in ``convertible_types()``. Temporaries stay below a megabyte.
    """
    layout, unpack = _FORMATS[dtype]
    records = data.view(layout)
    out = np.empty((len(records), dtype.block_size), np.float32)
    step = max(1, _CHUNK_BYTES // dtype.block_bytes)
    # A scale of inf or NaN is the file's to have: it becomes NaN weights, not a warning here.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(records), step):
            unpack(records[start : start + step], out[start : start + step])
    return out.reshape(-1)


def convertible_types() -> frozenset[TensorType]:
    """The types ``dequantize`` takes."""
    return frozenset(_FORMATS)


def _column(halves: _Records) -> Float32Array:
    """Float16 values ``[n]`` as a float32 column ``[n, 1]``."""
    return halves.astype(np.float32)[:, None]


def _copy_values(blocks: _Records, out: Float32Array) -> None:
    out[:, 0] = blocks


def _bf16(blocks: _Records, out: Float32Array) -> None:
    # bfloat16 is the upper half of a float32.
    np.left_shift(blocks[:, None], 16, out=out.view(np.uint32), dtype=np.uint32)


def _split_nibbles(quants: _Records, out: Float32Array) -> None:
    """Low halves of ``quants [n, k]`` to ``out[:, :k]``, high halves to ``out[:, k:]``."""
    half = quants.shape[1]
    out[:, :half] = quants & 0x0F
    out[:, half:] = quants >> 4


def _add_fifth_bits(blocks: _Records, out: Float32Array) -> None:
    """Bit ``j`` of ``fifth_bits`` is worth 16 in element ``j``."""
    bits = np.unpackbits(np.ascontiguousarray(blocks["fifth_bits"]), axis=1, bitorder="little")
    out += bits << 4


def _q4_0(blocks: _Records, out: Float32Array) -> None:
    _split_nibbles(blocks["quants"], out)
    out -= 8
    out *= _column(blocks["scale"])


def _q4_1(blocks: _Records, out: Float32Array) -> None:
    _split_nibbles(blocks["quants"], out)
    out *= _column(blocks["scale"])
    out += _column(blocks["minimum"])


def _q5_0(blocks: _Records, out: Float32Array) -> None:
    _split_nibbles(blocks["quants"], out)
    _add_fifth_bits(blocks, out)
    out -= 16
    out *= _column(blocks["scale"])


def _q5_1(blocks: _Records, out: Float32Array) -> None:
    _split_nibbles(blocks["quants"], out)
    _add_fifth_bits(blocks, out)
    out *= _column(blocks["scale"])
    out += _column(blocks["minimum"])


def _q8_0(blocks: _Records, out: Float32Array) -> None:
    np.multiply(blocks["quants"], _column(blocks["scale"]), out=out)


def _unpack_six_bits(packed: _Records) -> tuple[ByteArray, ByteArray]:
    """Eight scales and eight minimums ``[n, 8]`` of six bits each from 12 bytes.

    Bytes 0-3 and 4-7 hold the first four scales and minimums in their low six bits; bytes 8-11 hold the low
    four bits of the other scales (low half) and minimums (high half), whose top two bits are those left
    over in bytes 0-3 and 4-7.
    """
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | (low >> 6 << 4)], axis=1)
    minimums = np.concatenate([middle & 0x3F, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return scales, minimums


def _scale_sub_blocks(blocks: _Records, out: Float32Array) -> None:
    """Turn raw quants ``[n, 256]`` into weights with the Q4_K/Q5_K scale and minimum of every 32."""
    scales, minimums = _unpack_six_bits(blocks["packed_scales"])
    sub_blocks = out.reshape(len(out), 8, 32)
    sub_blocks *= (_column(blocks["scale"]) * scales)[:, :, None]
    sub_blocks -= (_column(blocks["minimum_scale"]) * minimums)[:, :, None]


def _split_pairs(quants: _Records, out: Float32Array) -> None:
    """Every 32 bytes hold two sub-blocks of 32: one in the low, the next in the high halves."""
    groups = quants.reshape(len(quants), 4, 32)
    sub_blocks = out.reshape(len(out), 4, 2, 32)
    sub_blocks[:, :, 0] = groups & 0x0F
    sub_blocks[:, :, 1] = groups >> 4


def _q4_k(blocks: _Records, out: Float32Array) -> None:
    _split_pairs(blocks["quants"], out)
    _scale_sub_blocks(blocks, out)


def _q5_k(blocks: _Records, out: Float32Array) -> None:
    _split_pairs(blocks["quants"], out)
    fifth_bits = blocks["fifth_bits"]
    for index in range(8):  # bit `index` of the 32 bytes belongs to sub-block `index`
        out[:, 32 * index : 32 * (index + 1)] += (fifth_bits >> index & 1) << 4
    _scale_sub_blocks(blocks, out)


def _q6_k(blocks: _Records, out: Float32Array) -> None:
    # Each half of 128 elements: 64 bytes of low four bits, 32 bytes of top two bits, in four rows of 32.
    low = blocks["low_bits"].reshape(len(blocks), 2, 2, 32)
    top = blocks["top_bits"].reshape(len(blocks), 2, 32)
    rows = out.reshape(len(out), 2, 4, 32)
    for index in range(4):
        low_bits = low[:, :, index % 2] >> (4 * (index // 2)) & 0x0F
        rows[:, :, index] = low_bits | (top >> (2 * index) & 3) << 4
    out -= 32
    sub_blocks = out.reshape(len(out), 16, 16)
    sub_blocks *= (_column(blocks["scale"]) * blocks["scales"])[:, :, None]


def _block(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    """Packed little-endian record."""
    return np.dtype(list(fields))


_FORMATS: Mapping[TensorType, _Format] = {
    TensorType.F32: _Format(np.dtype("<f4"), _copy_values),
    TensorType.F16: _Format(np.dtype("<f2"), _copy_values),
    TensorType.BF16: _Format(np.dtype("<u2"), _bf16),
    TensorType.Q4_0: _Format(_block(("scale", "<f2"), ("quants", "u1", 16)), _q4_0),
    TensorType.Q4_1: _Format(_block(("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", 16)), _q4_1),
    TensorType.Q5_0: _Format(_block(("scale", "<f2"), ("fifth_bits", "u1", 4), ("quants", "u1", 16)), _q5_0),
    TensorType.Q5_1: _Format(
        _block(("scale", "<f2"), ("minimum", "<f2"), ("fifth_bits", "u1", 4), ("quants", "u1", 16)), _q5_1
    ),
    TensorType.Q8_0: _Format(_block(("scale", "<f2"), ("quants", "i1", 32)), _q8_0),
    TensorType.Q4_K: _Format(
        _block(("scale", "<f2"), ("minimum_scale", "<f2"), ("packed_scales", "u1", 12), ("quants", "u1", 128)), _q4_k
    ),
    TensorType.Q5_K: _Format(
        _block(
            ("scale", "<f2"),
            ("minimum_scale", "<f2"),
            ("packed_scales", "u1", 12),
            ("fifth_bits", "u1", 32),
            ("quants", "u1", 128),
        ),
        _q5_k,
    ),
    TensorType.Q6_K: _Format(
        _block(("low_bits", "u1", 128), ("top_bits", "u1", 64), ("scales", "i1", 16), ("scale", "<f2")), _q6_k
    ),
}
