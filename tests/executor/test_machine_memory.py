"""What the machine, its control groups and their stalls say of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.executor.machine_memory import MachineMemory, MemoryReading, available_memory_bytes

GIB = 2**30


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    8388608 kB\n"


def _machine(folder: Path, files: dict[str, str], meminfo: str = MEMINFO) -> int:
    _write(folder, {"proc/meminfo": meminfo, **files})
    return available_memory_bytes(folder / "proc", folder / "cgroup")


def test_without_control_groups_the_kernel_estimate_counts(tmp_path: Path) -> None:
    assert _machine(tmp_path, {}) == 8 * GIB


def test_a_group_limit_counts_less_what_the_group_uses_and_cannot_drop(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/jobs/one\n",
        "cgroup/jobs/one/memory.max": f"{4 * GIB}\n",
        "cgroup/jobs/one/memory.current": f"{3 * GIB}\n",
        "cgroup/jobs/one/memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file {GIB * 3 // 4}\n",
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


def _reading(folder: Path, files: dict[str, str]) -> MemoryReading:
    _write(folder, {"proc/meminfo": MEMINFO, **files})
    return MachineMemory(folder / "proc", folder / "cgroup").read()


def test_a_reading_is_of_the_tightest_account_with_what_that_holds_in_all(tmp_path: Path) -> None:
    assert _reading(tmp_path, {}) == MemoryReading(8 * GIB, 16_000_000 * 1024, 0.0)
    files = {
        "proc/self/cgroup": "0::/job\n",
        "cgroup/job/memory.max": f"{4 * GIB}\n",
        "cgroup/job/memory.current": f"{3 * GIB}\n",
    }
    assert _reading(tmp_path, files) == MemoryReading(GIB, 4 * GIB, 0.0)


def test_stalls_are_those_of_the_machine_or_of_the_group_that_has_more(tmp_path: Path) -> None:
    pressure = "some avg10=50.00 avg60=1.00 avg300=0.00 total=9\nfull avg10={full} avg60=1.00 avg300=0.00 total=5\n"
    files = {"proc/self/cgroup": "0::/job\n", "proc/pressure/memory": pressure.format(full="3.50")}
    assert _reading(tmp_path, files).stalled_share == pytest.approx(0.035)
    files["cgroup/job/memory.pressure"] = pressure.format(full="12.00")
    assert _reading(tmp_path, files).stalled_share == pytest.approx(0.12)


def test_a_limit_of_the_process_itself_is_not_the_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda limit: (GIB, GIB))
    status = {"proc/self/status": f"VmSize: {GIB // 2048} kB\nVmData: 1 kB\n"}
    assert _reading(tmp_path, status).available_bytes == 8 * GIB
    assert available_memory_bytes(tmp_path / "proc", tmp_path / "cgroup") == GIB // 2
