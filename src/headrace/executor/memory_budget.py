"""How many blocks a budget of memory buys the KV cache, and how large a budget it gets by default.

Arithmetic on numbers it is given. Does not allocate, and knows models only by the bytes a token takes.
"""

from __future__ import annotations

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError

FREE_MEMORY_SHARE = 4
"""The default KV cache takes at most one in this many bytes of free memory."""


def choose_num_blocks(config: EngineConfig, max_model_len: int, token_bytes: int, available_bytes: int) -> int:
    """Blocks of the KV cache: what ``kv_cache_bytes`` buys, or by default what the model and machine suggest.

    ``token_bytes`` are the bytes of one token's keys and values in all layers. The default is what
    ``max_num_seqs`` sequences of ``max_model_len`` tokens can use, at most a quarter of ``available_bytes``.
    Raises ``ConfigError`` if the default cannot hold one such sequence, or an explicit budget not one block, and for
    a budget that is not there: a cache that is larger than memory would be killed when it fills.
    """
    size = token_bytes * config.block_size
    if config.kv_cache_bytes is not None:
        _check_is_free(config.kv_cache_bytes, available_bytes)
        return _blocks_of_budget(config.kv_cache_bytes, size, config.block_size)
    blocks_per_sequence = -(-max_model_len // config.block_size)
    affordable = available_bytes // FREE_MEMORY_SHARE // size
    if affordable < blocks_per_sequence:
        raise ConfigError(
            f"one sequence of max_model_len {max_model_len} tokens needs {_shown(blocks_per_sequence * size)} of KV "
            f"cache, but a quarter of the {_shown(available_bytes)} of free memory is "
            f"{_shown(available_bytes // FREE_MEMORY_SHARE)} (room for {affordable * config.block_size} tokens); "
            f"lower --max-model-len, or allow more with --kv-cache-bytes",
            "max_model_len",
        )
    return min(affordable, config.max_num_seqs * blocks_per_sequence)


def _check_is_free(num_bytes: int, available_bytes: int) -> None:
    if num_bytes > available_bytes:
        raise ConfigError(
            f"kv_cache_bytes is {_shown(num_bytes)} but only {_shown(available_bytes)} of memory are free; "
            "lower --kv-cache-bytes",
            "kv_cache_bytes",
        )


def _blocks_of_budget(num_bytes: int, size: int, block_size: int) -> int:
    if num_bytes < size:
        raise ConfigError(
            f"kv_cache_bytes is {num_bytes} but one block of {block_size} tokens needs {size} bytes; "
            "raise --kv-cache-bytes or lower --block-size",
            "kv_cache_bytes",
        )
    return num_bytes // size


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
