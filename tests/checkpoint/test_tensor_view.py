from __future__ import annotations

import numpy as np
import pytest

from headrace.checkpoint.tensor_view import TensorType, TensorView
from headrace.core.errors import ConfigError


def view_of(shape: tuple[int, ...], dtype: TensorType, seed: int = 0) -> TensorView:
    num_bytes = dtype.num_bytes(int(np.prod(shape)))
    data = np.random.default_rng(seed).integers(0, 60, num_bytes, dtype=np.uint8)
    data.flags.writeable = False
    return TensorView("blk.0.w", shape, dtype, data)


@pytest.mark.parametrize("dtype", [TensorType.F32, TensorType.Q4_1, TensorType.Q6_K])
def test_rows_give_the_same_values_as_the_whole(dtype: TensorType) -> None:
    view = view_of((10, 512), dtype)
    whole = view.to_float32()
    assert whole.shape == (10, 512)
    pieces = [view.rows(start, min(start + 3, 10)).to_float32() for start in range(0, 10, 3)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_rows_of_three_dimensions_cut_the_first() -> None:
    view = view_of((4, 2, 32), TensorType.Q8_0)
    part = view.rows(1, 3)
    assert part.shape == (2, 2, 32)
    np.testing.assert_array_equal(part.to_float32(), view.to_float32()[1:3])


def test_rows_copy_nothing() -> None:
    view = view_of((4, 32), TensorType.F32)
    assert np.shares_memory(view.rows(1, 2).data, view.data)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2)])
def test_rows_outside_the_tensor_are_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError):
        view_of((4, 32), TensorType.F32).rows(start, stop)


def test_raw_is_the_stored_bytes_read_only() -> None:
    view = view_of((2, 32), TensorType.Q4_0)
    assert bytes(view.raw) == view.data.tobytes()
    assert view.raw.readonly
    assert view.num_bytes == 36
    assert view.num_elements == 64


def test_a_type_without_conversion_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"blk\.0\.w is stored as IQ4_XS.*Q4_K") as caught:
        view_of((1, 256), TensorType.IQ4_XS).to_float32()
    assert caught.value.field == "blk.0.w"
