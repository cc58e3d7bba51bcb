"""What a server's processes take: memory, its peak, CPU seconds; read from ``/proc``.

A server is its process and everything below it, so that engines in processes of their own are counted. Processes
of other users, and other machines, cannot be seen; then there is no figure rather than a wrong one.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.http_client import Origin

PROC = Path("/proc")
INTERVAL_S = 0.5
_LISTEN = "0A"
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1", "0.0.0.0")  # noqa: S104 (compared with, never bound)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process and everything below it, now. ``peak_rss_bytes`` adds up each one's own peak."""

    rss_bytes: int
    peak_rss_bytes: int
    cpu_s: float
    num_processes: int


def usage_of(pid: int) -> Usage | None:
    """``None`` when the process is gone or is not ours to see. Costs about 50 us a process."""
    try:
        pids = tree_of(pid)
        usages = [_usage(each) for each in pids]
    except (OSError, ValueError, KeyError):
        return None
    return Usage(
        sum(usage.rss_bytes for usage in usages),
        sum(usage.peak_rss_bytes for usage in usages),
        sum(usage.cpu_s for usage in usages),
        len(usages),
    )


def tree_of(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for each in found:  # grows while it is walked
        for task in (PROC / str(each) / "task").iterdir():
            try:
                found += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue  # a thread that ended meanwhile
    return found


def find_listener(origin: Origin) -> int | None:
    """The process that listens at a local address: the topmost one that has the socket; ``None`` if not found."""
    if origin.host not in _LOOPBACK_NAMES:
        return None
    inodes = _listening_inodes(origin.port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    holders = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit() and _holds(entry, wanted)]
    return min(holders, default=None)


class PeakMemory:
    """Watches a server's memory during a run. *Mutable.* ``peak_bytes`` is of what was seen, between polls too."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak_bytes = 0

    async def watch(self) -> None:
        """Until cancelled, or the process is gone."""
        while (usage := usage_of(self._pid)) is not None:
            self.peak_bytes = max(self.peak_bytes, usage.rss_bytes)
            await asyncio.sleep(INTERVAL_S)


def _usage(pid: int) -> Usage:
    fields = {}
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    # after the name, which may hold spaces and brackets: state is the first, utime and stime the 12th and 13th
    words = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    ticks = int(words[11]) + int(words[12])
    return Usage(
        int(fields.get("VmRSS", ["0"])[0]) * 1024,
        int(fields.get("VmHWM", ["0"])[0]) * 1024,
        ticks / os.sysconf("SC_CLK_TCK"),
        1,
    )


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return inodes


def _holds(process: Path, wanted: set[str]) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            try:
                if os.readlink(descriptor) in wanted:
                    return True
            except OSError:
                continue  # closed meanwhile
    except OSError:
        pass  # of another user, or gone
    return False
