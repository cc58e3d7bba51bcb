"""What a process leaves on a machine: its descendants, sockets and shared memory, read from the kernel."""

from __future__ import annotations

import tempfile
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, itself not included."""
    found, waiting = [], [pid]
    while waiting:
        for child in _children(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return found


def alive(pids: list[int]) -> list[int]:
    """Those that exist and are not merely waiting to be reaped."""
    return [pid for pid in pids if _state(pid) not in ("", "Z")]


def leftovers() -> set[str]:
    """Socket folders and shared-memory objects of any headrace on this machine."""
    folders = Path(tempfile.gettempdir()).glob("headrace-*")
    return {str(path) for path in (*folders, *Path("/dev/shm").glob("headrace*"))}


def num_threads(pid: int) -> int:
    return len(_listed(Path(f"/proc/{pid}/task")))


def num_files(pid: int) -> int:
    """Open file descriptors."""
    return len(_listed(Path(f"/proc/{pid}/fd")))


def private_bytes(pid: int) -> int:
    """Anonymous memory of a process, swapped-out pages included (``RssAnon + VmSwap``)."""
    lines = dict(line.split(":", 1) for line in _text(Path(f"/proc/{pid}/status")).splitlines() if ":" in line)
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap") if name in lines)


def _children(pid: int) -> list[int]:
    tasks = _listed(Path(f"/proc/{pid}/task"))
    return [int(child) for task in tasks for child in _text(task / "children").split()]


def _state(pid: int) -> str:
    stat = _text(Path(f"/proc/{pid}/stat"))
    return stat.rpartition(")")[2].split()[0] if stat else ""


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
