"""How many KV blocks a budget buys, and what the machine has to give."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.executor.memory_budget import available_memory_bytes, choose_num_blocks

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


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    8388608 kB\n"


def _machine(folder: Path, files: dict[str, str], meminfo: str = MEMINFO) -> int:
    _write(folder, {"proc/meminfo": meminfo, **files})
    return available_memory_bytes(folder / "proc", folder / "cgroup")


def test_an_explicit_budget_beyond_free_memory_is_refused_with_both_numbers() -> None:
    config = EngineConfig(kv_cache_bytes=10 * GIB)
    with pytest.raises(ConfigError, match=r"is 10\.00 GiB but only 1\.00 GiB of memory are free") as caught:
        choose_num_blocks(config, 4096, TOKEN_BYTES, available_bytes=GIB)
    assert caught.value.field == "kv_cache_bytes"


def test_without_control_groups_the_kernel_estimate_counts(tmp_path: Path) -> None:
    assert _machine(tmp_path, {}) == 8 * GIB


def test_a_group_limit_counts_less_what_the_group_uses_and_cannot_drop(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/jobs/one\n",
        "cgroup/jobs/one/memory.max": f"{4 * GIB}\n",
        "cgroup/jobs/one/memory.current": f"{3 * GIB}\n",
        "cgroup/jobs/one/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    assert _machine(tmp_path, files) == 2 * GIB


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/jobs/one\n",
        "cgroup/jobs/one/memory.max": "max\n",
        "cgroup/jobs/one/memory.current": "0\n",
        "cgroup/jobs/memory.max": f"{GIB}\n",
        "cgroup/jobs/memory.current": f"{GIB // 4}\n",
    }
    assert _machine(tmp_path, files) == GIB * 3 // 4


def test_in_a_container_the_limit_stands_at_the_root(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/../../outside\n",
        "cgroup/memory.max": f"{GIB}\n",
        "cgroup/memory.current": "0\n",
    }
    assert _machine(tmp_path, files) == GIB


def test_limits_of_the_older_hierarchy_count_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/box\n0::/\n",
        "cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
        "cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
        "cgroup/memory/box/memory.stat": f"total_inactive_file {GIB // 2}\n",
    }
    assert _machine(tmp_path, files) == GIB * 3 // 2


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "cgroup/memory.max": "10\n", "cgroup/memory.current": "20\n"}
    assert _machine(tmp_path, files) == 0


def test_a_system_that_does_not_say_asks_for_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-bytes"):
        available_memory_bytes(tmp_path / "proc", tmp_path / "cgroup")
    with pytest.raises(ConfigError, match="--kv-cache-bytes"):
        _machine(tmp_path, {}, meminfo="MemTotal: 1 kB\n")


def test_this_machine_reports_something_believable() -> None:
    assert 0 < available_memory_bytes() < 2**50
