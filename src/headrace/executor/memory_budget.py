"""How much memory the KV cache may take on this machine, and how many blocks that buys.

Owns the arithmetic and the reading of the kernel's and the container's accounts. Does not allocate, and knows
models only by the bytes a token takes.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError

FREE_MEMORY_SHARE = 4
"""The default KV cache takes at most one in this many bytes of free memory."""

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


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


def available_memory_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Memory this process may still take: the kernel's estimate, or less where its control groups or its own
    limits (``ulimit``) allow less.

    Pages of files that a group can drop count as available, as the kernel counts them. Raises ``ConfigError``
    if the system does not say.
    """
    limits = [*_cgroup_available_bytes(proc, cgroup), *_rlimit_available_bytes(proc)]
    return max(0, min([_kernel_available_bytes(proc), *limits]))


def _rlimit_available_bytes(proc: Path) -> Iterator[int]:
    """What the process's own limits leave of its address space (``ulimit -v``) and of its data (``ulimit -d``)."""
    status = dict(line.split(":", 1) for line in _read(proc / "self" / "status").splitlines() if ":" in line)
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and used in status:
            yield soft - int(status[used].split()[0]) * 1024


def _kernel_available_bytes(proc: Path) -> int:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read free memory ({error}); set --kv-cache-bytes", "kv_cache_bytes") from error
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ConfigError("the system does not report MemAvailable; set --kv-cache-bytes", "kv_cache_bytes")


def _cgroup_available_bytes(proc: Path, cgroup: Path) -> Iterator[int]:
    """What each limited group above this process has left (cgroup v2, and v1's memory controller)."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            yield from _groups_left(cgroup, path, names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _groups_left(cgroup / "memory", path, names)


def _groups_left(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    limit_name, usage_name, droppable_name = names
    group = root / path.strip("/")
    # In a container the group's own path often names a folder of the host; the root is then its limit.
    for folder in (group, *group.parents):
        limit, usage = _read(folder / limit_name).strip(), _read(folder / usage_name).strip()
        if limit.isdigit() and usage.isdigit():
            yield int(limit) - int(usage) + _stat(folder / "memory.stat", droppable_name)
        if folder == root:
            return


def _stat(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: Path) -> str:
    """Text of a file that may well not exist here; then there is no such limit."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
