"""What this machine is: read from the system's own accounts, never from what a library makes of them."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

SPEED_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16")
"""Instruction sets that decide how fast a CPU multiplies matrices (x86 names)."""

_CPUINFO = Path("/proc/cpuinfo")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Cpu:
    """``flags`` are those of ``SPEED_FLAGS`` it has; ``num_cores`` is what this process may use."""

    name: str
    num_cores: float
    flags: tuple[str, ...]


def read_cpu(cpuinfo: Path = _CPUINFO, quota: Path = _CPU_QUOTA) -> Cpu:
    fields = _cpuinfo_fields(_read(cpuinfo))
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    name = fields.get("model name") or platform.processor() or platform.machine()
    return Cpu(name, usable_cores(_read(quota)), tuple(flag for flag in SPEED_FLAGS if flag in flags))


def usable_cores(quota: str) -> float:
    """Cores of this process's affinity, or fewer where its control group's ``cpu.max`` grants less."""
    cores = float(len(os.sched_getaffinity(0)))
    words = quota.split()
    if len(words) == 2 and words[0].isdigit():
        cores = min(cores, int(words[0]) / int(words[1]))
    return cores


def nearest_folder(path: Path) -> Path:
    """``path`` or its closest ancestor that exists, as far as this user can see."""
    return next(folder for folder in (path, *path.parents) if _is_seen(folder))


def write_error(folder: Path) -> str:
    """Why nothing can be written in a folder; empty if it can. Tried, since permission bits are not the whole truth."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def port_error(host: str, port: int) -> str:
    """Why a server cannot listen there; empty if it can."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _is_seen(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below a folder that is closed to this user, or with a name no file system takes
        return False


def _cpuinfo_fields(text: str) -> dict[str, str]:
    """The first processor's fields."""
    first = text.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
