"""In what format keys and values are cached, and what a token of them takes."""

from __future__ import annotations

from headrace.core.model_config import ModelConfig
from headrace.executor.native_weights import WeightChoice
from headrace.native.host import half_kv_format
from headrace.native.operations import KvFormat

_KV_FORMATS = {
    "float32": KvFormat.F32,
    "f32": KvFormat.F32,
    "float16": KvFormat.F16,
    "f16": KvFormat.F16,
    "bfloat16": KvFormat.BF16,
    "bf16": KvFormat.BF16,
    "int8": KvFormat.INT8,
}


def kv_format(kv_cache_dtype: str, weights: WeightChoice) -> KvFormat:
    """What a ``kv_cache_dtype`` setting asks for; by default 16 bits, except beside float32 weights."""
    if kv_cache_dtype == "auto":
        return KvFormat.F32 if weights is WeightChoice.F32 else half_kv_format()
    return _KV_FORMATS[kv_cache_dtype]


def kv_token_bytes(config: ModelConfig, kv: KvFormat) -> int:
    """Bytes of one token's keys and values in all layers, an int8 cache's scales included."""
    if kv is KvFormat.INT8:
        return config.kv_bytes_per_token(1) + 2 * config.num_layers * config.num_kv_heads * 4
    return config.kv_bytes_per_token(4 if kv is KvFormat.F32 else 2)
