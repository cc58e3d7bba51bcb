"""Which machine and which build of the kernels this is: what measurements and packed weights hold for."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import msgspec

from headrace.native import _native
from headrace.native.operations import KvFormat

_CPUINFO = Path("/proc/cpuinfo")


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """``cpu`` is the processor's own name, ``kernels`` the instruction set chosen on it.

    ``build`` identifies the compiled kernels to the byte, ``layout`` the order in which weights are packed, the
    same for every instruction set.
    """

    cpu: str
    kernels: str
    build: str
    layout: int


def this_host(cpuinfo: Path = _CPUINFO) -> Host:
    """Costs a few milliseconds: the module's file is read."""
    return Host(
        cpu=_cpu_name(cpuinfo),
        kernels=_native.best_kernels(),
        build=hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()[:16],
        layout=_native.layout_version(),
    )


def half_kv_format() -> KvFormat:
    """The 16-bit format of keys and values that this machine's kernels compute with fastest."""
    return KvFormat(_native.half_kv_format())


def _cpu_name(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
