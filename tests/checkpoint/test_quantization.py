"""Dequantisation against an independent implementation, to the last bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize as reference_dequantize

from headrace.checkpoint.quantization import convertible_types, dequantize
from headrace.checkpoint.tensor_type import TensorType

QUANTIZED = sorted((t for t in convertible_types() if t.block_size > 1), key=lambda t: t.label)


def random_blocks(dtype: TensorType, num_blocks: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, num_blocks * dtype.block_bytes, dtype=np.uint8)


@pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda t: t.label)
@pytest.mark.parametrize("num_blocks", [1, 7, 20_000])
def test_random_bytes_give_exactly_the_reference_values(dtype: TensorType, num_blocks: int) -> None:
    data = random_blocks(dtype, num_blocks, seed=num_blocks)
    with np.errstate(all="ignore"):
        expected = reference_dequantize(data, gguf.GGMLQuantizationType[dtype.label]).reshape(-1)
    result = dequantize(data, dtype)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)  # NaN equals NaN here


def test_every_type_the_issue_asks_for_is_convertible() -> None:
    wanted = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
    assert {t.label for t in convertible_types()} == wanted


@pytest.mark.parametrize("dtype", [t for t in TensorType if t.label in GGML_QUANT_SIZES or t.block_size > 1])
def test_block_sizes_agree_with_the_reference(dtype: TensorType) -> None:
    assert GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.label]] == (dtype.block_size, dtype.block_bytes)


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    values = np.array([1.5, -2.0, 0.0, 3.0e38, -0.0, np.inf], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    expected = (halves.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(dequantize(halves.view(np.uint8), TensorType.BF16), expected)


def test_float16_and_float32_keep_their_values() -> None:
    values = np.array([0.5, -1.25, 65504.0, 6e-8], np.float32)
    np.testing.assert_array_equal(dequantize(values.view(np.uint8), TensorType.F32), values)
    halves = values.astype(np.float16)
    np.testing.assert_array_equal(dequantize(halves.view(np.uint8), TensorType.F16), halves.astype(np.float32))


def test_an_infinite_scale_becomes_nan_without_a_warning() -> None:
    data = np.zeros(TensorType.Q8_0.block_bytes, np.uint8)
    data[:2] = np.array([np.inf], np.float16).view(np.uint8)
    assert np.isnan(dequantize(data, TensorType.Q8_0)).all()


def test_bytes_that_lie_at_odd_addresses_are_read_as_well() -> None:
    values = np.arange(5, dtype=np.float32)
    shifted = np.concatenate([np.zeros(1, np.uint8), values.view(np.uint8)])[1:]
    np.testing.assert_array_equal(dequantize(shifted, TensorType.F32), values)


def test_the_result_is_writable_and_owns_its_memory() -> None:
    data = np.arange(4, dtype=np.float32).view(np.uint8)
    data.flags.writeable = False
    result = dequantize(data, TensorType.F32)
    result[:] = 7
    assert (data.view(np.float32) == np.arange(4)).all()
