"""The tiers below the KV cache as the settings ask for them: how many blocks each holds, and the executor over them.

Knows sizes and where the bytes come from; what goes where is the business of ``cache.tiers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.step import Executor
from headrace.core.units import format_bytes
from headrace.executor.disk_blocks import DiskBlocks
from headrace.executor.tiered_executor import BlockMemory, TieredExecutor, TierMemory


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Blocks that fit each tier; none without the setting."""

    num_host_blocks: int
    num_disk_blocks: int
    block_bytes: int


def resolve_tiers(config: EngineConfig, block_bytes: int, available_bytes: int) -> TierSizes:
    """Settle the tiers' sizes. Raises ``ConfigError`` with the numbers and the flag that would fix it.

    ``available_bytes`` is the memory left beside the KV cache.
    """
    if config.swap_space_bytes > available_bytes:
        free = format_bytes(max(0, available_bytes))
        raise ConfigError(
            f"swap_space_bytes is {format_bytes(config.swap_space_bytes)} but only {free} of memory are free beside "
            "the KV cache; lower --swap-space or --kv-cache-bytes",
            "swap_space_bytes",
        )
    if config.disk_kv_cache is not None and not config.swap_space_bytes:
        raise ConfigError(
            "disk_kv_cache needs a host tier, as blocks pass through it; add --swap-space 1GiB, say", "swap_space_bytes"
        )
    num_host_blocks = num_disk_blocks = 0
    if config.swap_space_bytes:
        num_host_blocks = _num_blocks("swap_space_bytes", config.swap_space_bytes, block_bytes)
    if config.disk_kv_cache is not None:
        num_disk_blocks = _num_blocks("disk_kv_cache_bytes", config.disk_kv_cache_bytes, block_bytes)
    return TierSizes(num_host_blocks, num_disk_blocks, block_bytes)


def with_tiers(executor: Executor, device: BlockMemory, sizes: TierSizes, disk_path: str | None) -> Executor:
    """The executor, able to do a plan's transfers. Raises ``ConfigError`` for an unusable file."""
    disk = None if disk_path is None else DiskBlocks(Path(disk_path), sizes.num_disk_blocks, sizes.block_bytes)
    return TieredExecutor(executor, TierMemory(device, sizes.num_host_blocks, disk))


def _num_blocks(name: str, num_bytes: int, block_bytes: int) -> int:
    if num_bytes < block_bytes:
        raise ConfigError(
            f"{name} is {num_bytes} bytes but one block of the KV cache has {block_bytes}; write sizes with a unit, "
            f"like --{name.replace('_', '-')} 1GiB",
            name,
        )
    return num_bytes // block_bytes
