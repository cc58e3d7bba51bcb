"""How many KV blocks a budget buys."""

from __future__ import annotations

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.executor.memory_budget import choose_num_blocks

MIB = 2**20
GIB = 2**30

TOKEN_BYTES = 1024
"""So a block of 16 tokens takes 16 KiB."""


def test_the_default_is_what_all_sequences_at_full_length_can_use() -> None:
    config = EngineConfig(max_num_seqs=8)
    assert choose_num_blocks(config, 1000, TOKEN_BYTES, available_bytes=100 * GIB) == 8 * 63


def test_the_default_is_at_most_a_quarter_of_free_memory() -> None:
    config = EngineConfig(max_num_seqs=64)
    assert choose_num_blocks(config, 4096, TOKEN_BYTES, available_bytes=64 * MIB) == 16 * MIB // (16 * 1024)


def test_one_full_length_sequence_must_fit_or_the_refusal_names_numbers_and_flags() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_num_blocks(EngineConfig(), 4096, TOKEN_BYTES, available_bytes=12 * MIB)
    for part in ("4096 tokens", "4.0 MiB", "12.0 MiB", "3.0 MiB", "3072 tokens", "--max-model-len", "--kv-cache-bytes"):
        assert part in caught.value.message
    assert choose_num_blocks(EngineConfig(), 3072, TOKEN_BYTES, available_bytes=12 * MIB) == 192


def test_an_explicit_budget_is_taken_as_it_is() -> None:
    config = EngineConfig(kv_cache_bytes=5 * 16 * 1024)
    assert choose_num_blocks(config, 4096, TOKEN_BYTES, available_bytes=GIB) == 5


def test_an_explicit_budget_below_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="16384 bytes") as caught:
        choose_num_blocks(EngineConfig(kv_cache_bytes=16 * 1024 - 1), 4096, TOKEN_BYTES, available_bytes=GIB)
    assert caught.value.field == "kv_cache_bytes"


def test_an_explicit_budget_beyond_free_memory_is_refused_with_both_numbers() -> None:
    config = EngineConfig(kv_cache_bytes=10 * GIB)
    with pytest.raises(ConfigError, match=r"is 10\.00 GiB but only 1\.00 GiB of memory are free") as caught:
        choose_num_blocks(config, 4096, TOKEN_BYTES, available_bytes=GIB)
    assert caught.value.field == "kv_cache_bytes"
