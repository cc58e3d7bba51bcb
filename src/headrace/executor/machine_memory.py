"""How much memory there is and how much of it is left: the kernel's accounts, those of control groups, and ours.

Owns the reading of the files in which they are kept. What to do about the numbers is decided elsewhere.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.core.errors import ConfigError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


class MemoryAccount(NamedTuple):
    """What one account has left, and what it holds in all. Ordered by what is left."""

    available_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The tightest of the accounts, and the share of the last ten seconds in which nothing ran for want of memory."""

    available_bytes: int
    capacity_bytes: int
    stalled_share: float = 0.0


class MachineMemory:
    """Memory of the machine and of the control groups above this process.

    A limit of the process's own (``ulimit``) is left out: what it forbids fails as an allocation, at once and alone.
    """

    def __init__(self, proc: Path = _PROC, cgroup: Path = _CGROUP) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def read(self) -> MemoryReading:
        """Costs some 0.1 ms. Raises ``ConfigError`` if the system does not say."""
        groups = list(_groups(self._proc, self._cgroup))
        accounts = [account for group in groups if (account := _group_account(group)) is not None]
        tightest = min([_kernel_account(self._proc), *accounts])
        return MemoryReading(max(0, tightest.available_bytes), tightest.capacity_bytes, self._stalled_share(groups))

    def _stalled_share(self, groups: list[_Group]) -> float:
        """Pressure stall information, "full", of the machine or the group that stalls most; 0 where there is none.

        It shows what free memory does not: that pages of mapped files, such as weights, are dropped and read again.
        """
        files = [self._proc / "pressure" / "memory", *(group.folder / "memory.pressure" for group in groups)]
        return max(_stalled_share(_read(path)) for path in files)


def available_memory_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Memory this process may still take: the kernel's estimate, or less where its control groups or its own
    limits (``ulimit``) allow less.

    Pages of files that a group can drop count as available, as the kernel counts them. Raises ``ConfigError``
    if the system does not say.
    """
    left = MachineMemory(proc, cgroup).read().available_bytes
    return max(0, min([left, *_rlimit_available_bytes(proc)]))


def _rlimit_available_bytes(proc: Path) -> Iterator[int]:
    """What the process's own limits leave of its address space (``ulimit -v``) and of its data (``ulimit -d``)."""
    status = dict(line.split(":", 1) for line in _read(proc / "self" / "status").splitlines() if ":" in line)
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and used in status:
            yield soft - int(status[used].split()[0]) * 1024


def _kernel_account(proc: Path) -> MemoryAccount:
    try:
        text = (proc / "meminfo").read_text()
    except OSError as error:
        raise ConfigError(f"cannot read free memory ({error}); set --kv-cache-bytes", "kv_cache_bytes") from error
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if "MemAvailable" not in fields:
        raise ConfigError("the system does not report MemAvailable; set --kv-cache-bytes", "kv_cache_bytes")
    available, capacity = (int(fields.get(name, "0").split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return MemoryAccount(available, capacity)


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group above this process, with the names of its files in its version of control groups."""

    folder: Path
    limit_name: str
    usage_name: str
    stat_prefix: str


def _groups(proc: Path, cgroup: Path) -> Iterator[_Group]:
    """Every group above this process (cgroup v2, and v1's memory controller)."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            names = ("memory.max", "memory.current", "")
            yield from (_Group(folder, *names) for folder in _folders(cgroup, path))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            yield from (_Group(folder, *names) for folder in _folders(cgroup / "memory", path))


def _folders(root: Path, path: str) -> Iterator[Path]:
    group = root / path.strip("/")
    # In a container the group's own path often names a folder of the host; the root is then its limit.
    for folder in (group, *group.parents):
        yield folder
        if folder == root:
            return


def _group_account(group: _Group) -> MemoryAccount | None:
    """What a group has left; nothing to say of one without a limit.

    Pages of files count as left, also those in use, as they do in the kernel's own estimate for the whole machine:
    dropping them costs time, which shows as stalls, and not lives.
    """
    limit, usage = _read(group.folder / group.limit_name).strip(), _read(group.folder / group.usage_name).strip()
    if not (limit.isdigit() and usage.isdigit()):
        return None
    stat = dict(line.split() for line in _read(group.folder / "memory.stat").splitlines())
    file_bytes = sum(int(stat.get(f"{group.stat_prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return MemoryAccount(int(limit) - int(usage) + file_bytes, int(limit))


def _stalled_share(text: str) -> float:
    """``full avg10=12.34 ...`` as 0.1234."""
    for line in text.splitlines():
        kind, _, averages = line.partition(" ")
        if kind == "full":
            name, _, percent = averages.partition(" ")[0].partition("=")
            return float(percent) / 100.0 if name == "avg10" else 0.0
    return 0.0


def _read(path: Path) -> str:
    """Text of a file that may well not exist here; then there is no such limit."""
    try:
        return path.read_text()
    except OSError:
        return ""
