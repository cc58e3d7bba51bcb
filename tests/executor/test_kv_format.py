"""In what format keys and values are kept, and what they take."""

from __future__ import annotations

import pytest

from headrace.executor.kv_format import kv_format, kv_token_bytes
from headrace.executor.native_weights import WeightChoice
from headrace.native import _native
from headrace.native.host import half_kv_format
from headrace.native.operations import KvFormat
from tests.native.configs import SHAPES


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("float32", KvFormat.F32),
        ("f32", KvFormat.F32),
        ("float16", KvFormat.F16),
        ("bfloat16", KvFormat.BF16),
        ("bf16", KvFormat.BF16),
        ("int8", KvFormat.INT8),
    ],
)
def test_a_setting_is_what_it_says_beside_any_weights(setting: str, expected: KvFormat) -> None:
    assert {kv_format(setting, weights) for weights in WeightChoice} == {expected}


def test_by_default_the_cache_is_as_wide_as_float32_weights_and_takes_16_bits_beside_all_others() -> None:
    assert kv_format("auto", WeightChoice.F32) is KvFormat.F32
    others = [kv_format("auto", weights) for weights in WeightChoice if weights is not WeightChoice.F32]
    assert set(others) == {half_kv_format()}


def test_bfloat16_is_the_default_where_the_kernels_multiply_it() -> None:
    multiplies_it = _native.best_kernels() == "avx512_bf16"
    assert half_kv_format() is (KvFormat.BF16 if multiplies_it else KvFormat.F16)


def test_both_16_bit_formats_take_half_of_what_float32_takes() -> None:
    config = SHAPES["llama"]
    assert kv_token_bytes(config, KvFormat.BF16) == kv_token_bytes(config, KvFormat.F16)
    assert 2 * kv_token_bytes(config, KvFormat.F16) == kv_token_bytes(config, KvFormat.F32)
