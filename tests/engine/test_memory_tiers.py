"""Sizes of the tiers below the KV cache, settled or refused with the way out."""

from __future__ import annotations

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.engine.memory_tiers import TierSizes, resolve_tiers


def test_there_are_none_unless_asked_for() -> None:
    assert resolve_tiers(EngineConfig(), 1000, 0) == TierSizes(0, 0, 1000)


def test_a_tier_holds_the_blocks_that_fit_it() -> None:
    config = EngineConfig(swap_space_bytes=10_999, disk_kv_cache="kv", disk_kv_cache_bytes=25_000)
    assert resolve_tiers(config, 1000, 10_999) == TierSizes(10, 25, 1000)


def test_memory_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"swap_space_bytes is 4.0 GiB but only 1.0 GiB .* lower --swap-space"):
        resolve_tiers(EngineConfig(swap_space_bytes=4 << 30), 1000, 1 << 30)


def test_a_size_without_its_unit_is_noticed() -> None:
    with pytest.raises(ConfigError, match=r"swap_space_bytes is 4 bytes .* --swap-space-bytes 1GiB"):
        resolve_tiers(EngineConfig(swap_space_bytes=4), 1000, 1 << 30)


def test_a_disk_needs_a_host_tier() -> None:
    with pytest.raises(ConfigError, match="add --swap-space 1GiB"):
        resolve_tiers(EngineConfig(disk_kv_cache="kv"), 1000, 1 << 30)
