"""Packed weights mean what the file means: bit for bit where the layout can hold it, within half a step elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.checkpoint.tensor_view import TensorType, TensorView
from headrace.native.operations import WeightFormat
from headrace.native.packing import PANEL_ROWS, PackedWeight, StoredFormat

STORED = {
    StoredFormat.Q4_0: TensorType.Q4_0,
    StoredFormat.Q4_1: TensorType.Q4_1,
    StoredFormat.Q8_0: TensorType.Q8_0,
    StoredFormat.Q4_K: TensorType.Q4_K,
}

FROM_FLOATS = [f for f in WeightFormat if f is not WeightFormat.INT4_WIDE]


def random_blocks(stored: StoredFormat, num_rows: int, num_columns: int) -> TensorView:
    """A stored tensor with every byte random, but scales and minima that are ordinary numbers."""
    rng = np.random.default_rng(stored)
    dtype = STORED[stored]
    num_blocks = num_rows * num_columns // dtype.block_size
    blocks = rng.integers(0, 256, (num_blocks, dtype.block_bytes), np.uint8)
    num_factors = 2 if stored in (StoredFormat.Q4_1, StoredFormat.Q4_K) else 1
    factors = rng.normal(0.0, 0.02, (num_blocks, num_factors)).astype(np.float16)
    blocks[:, : 2 * num_factors] = factors.view(np.uint8)
    return TensorView("w", (num_rows, num_columns), dtype, blocks.reshape(-1))


def all_rows(weight: PackedWeight) -> np.ndarray:
    return np.stack([weight.row(index) for index in range(weight.num_rows)])


@pytest.mark.parametrize("stored", StoredFormat)
@pytest.mark.parametrize(("num_rows", "num_blocks"), [(1, 1), (16, 2), (37, 3), (64, 18)])
def test_stored_blocks_unpack_to_exactly_what_the_checkpoint_dequantises_to(stored, num_rows, num_blocks) -> None:
    num_columns = num_blocks * TensorType[stored.name].block_size
    view = random_blocks(stored, num_rows, num_columns)
    weight = PackedWeight.empty(stored.packed, num_rows, num_columns)
    weight.put_stored(0, num_rows, stored, view.data)
    assert np.array_equal(all_rows(weight), view.to_float32())


@pytest.mark.parametrize("stored", StoredFormat)
def test_stored_blocks_may_be_taken_over_a_few_panels_at_a_time(stored) -> None:
    num_columns = 2 * TensorType[stored.name].block_size
    view = random_blocks(stored, 50, num_columns)
    whole, parts = (PackedWeight.empty(stored.packed, 50, num_columns) for _ in range(2))
    whole.put_stored(0, 50, stored, view.data)
    for start, stop in ((32, 50), (0, 16), (16, 32)):
        parts.put_stored(start, stop - start, stored, view.rows(start, stop).data)
    assert np.array_equal(whole.data, parts.data)


@pytest.mark.parametrize("weight_format", FROM_FLOATS)
def test_floats_may_be_packed_a_few_panels_at_a_time(weight_format) -> None:
    values = np.random.default_rng(0).normal(size=(3 * PANEL_ROWS + 5, 45)).astype(np.float32)
    whole, parts = (PackedWeight.empty(weight_format, *values.shape) for _ in range(2))
    whole.put_floats(0, values)
    for start in (32, 0, 48, 16):
        parts.put_floats(start, values[start : start + PANEL_ROWS])
    assert np.array_equal(whole.data, parts.data)


def test_float32_is_kept_and_half_precision_rounded_to_nearest() -> None:
    values = np.random.default_rng(1).normal(size=(21, 45)).astype(np.float32)
    packed = {}
    for weight_format in (WeightFormat.F32, WeightFormat.F16, WeightFormat.BF16):
        weight = PackedWeight.empty(weight_format, *values.shape)
        weight.put_floats(0, values)
        packed[weight_format] = all_rows(weight)
    assert np.array_equal(packed[WeightFormat.F32], values)
    assert np.array_equal(packed[WeightFormat.F16], values.astype(np.float16).astype(np.float32))
    assert np.abs(packed[WeightFormat.BF16] - values).max() <= (np.abs(values) / 256).max()
    assert not (packed[WeightFormat.BF16].view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("num_columns", [1, 31, 32, 33, 96, 100])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_int8_is_within_half_of_one_of_127_steps_of_its_groups_largest(num_columns, offset) -> None:
    values = (np.random.default_rng(2).normal(size=(35, num_columns)) + offset).astype(np.float32)
    weight = PackedWeight.empty(WeightFormat.INT8, *values.shape)
    weight.put_floats(0, values)
    error = np.abs(all_rows(weight) - values)
    for start in range(0, num_columns, 32):
        group = np.s_[:, start : start + 32]
        steps = np.abs(values[group]).max(axis=1, keepdims=True) / 127
        assert (error[group] <= steps / 2 * 1.01).all()  # the scale itself is rounded to f16, upwards


@pytest.mark.parametrize("num_columns", [1, 31, 32, 33, 96, 100])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_int4_is_within_half_of_one_of_15_steps_of_its_groups_range(num_columns, offset) -> None:
    values = (np.random.default_rng(3).normal(size=(35, num_columns)) + offset).astype(np.float32)
    weight = PackedWeight.empty(WeightFormat.INT4, *values.shape)
    weight.put_floats(0, values)
    error = np.abs(all_rows(weight) - values)
    for start in range(0, num_columns, 32):
        group = np.s_[:, start : start + 32]
        ranges = np.ptp(values[group], axis=1, keepdims=True)
        minima = np.abs(values[group].min(axis=1, keepdims=True))
        assert (error[group] <= ranges / 30 * 1.01 + minima / 1024).all()  # minimum and scale are rounded to f16


def test_a_weight_file_of_zeros_packs_to_zeros() -> None:
    for weight_format in FROM_FLOATS:
        weight = PackedWeight.empty(weight_format, 17, 40)
        weight.put_floats(0, np.zeros((17, 40), np.float32))
        assert not all_rows(weight).any()


@pytest.mark.parametrize("weight_format", WeightFormat)
def test_packed_bytes_are_those_of_the_documented_layout(weight_format) -> None:
    value_bits = {"F32": 32, "F16": 16, "BF16": 16, "INT8": 8, "INT4": 4, "INT4_WIDE": 4}[weight_format.name]
    scale_bytes = {"INT8": 2, "INT4": 4, "INT4_WIDE": 8}.get(weight_format.name, 0)
    panel = 2 * PANEL_ROWS * (32 * value_bits // 8 + scale_bytes)  # two groups, which fill whole cache lines
    assert panel % 64 == 0
    assert PackedWeight.empty(weight_format, 33, 64).data.nbytes == 3 * panel
    assert PackedWeight.empty(weight_format, 33, 64).data.ctypes.data % 64 == 0
