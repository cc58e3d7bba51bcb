"""Which CPU each thread is kept on, where threads are to stay where they are.

Chooses among the CPUs that this process was given (taskset, cpusets, a container's share) and knows no others. Does
not know who else was given the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.core.errors import ConfigError

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cpus_for(threads: int, topology: Path = _TOPOLOGY) -> list[int]:
    """A CPU for each of ``threads``, cores before the second hardware thread of any.

    Raises ``ConfigError`` if this process may use fewer.
    """
    cpus = _by_core(os.sched_getaffinity(0), topology)
    if threads > len(cpus):
        raise ConfigError(
            f"threads is {threads}, but pin_threads takes a CPU for each and this process may use {len(cpus)}; lower "
            f"--threads to {len(cpus)}, or leave --pin-threads out",
            "pin_threads",
        )
    return cpus[:threads]


def _by_core(cpus: Iterable[int], topology: Path) -> list[int]:
    """The first of each core's ``cpus``, then the second of each, and so on."""
    num_seen: dict[str, int] = {}
    ranked = []
    for cpu in sorted(cpus):
        core = _siblings(cpu, topology)
        num_seen[core] = num_seen.get(core, 0) + 1
        ranked.append((num_seen[core], cpu))
    return [cpu for _, cpu in sorted(ranked)]


def _siblings(cpu: int, topology: Path) -> str:
    """A name for a CPU's core: the list of its hardware threads. Itself where the system does not say."""
    try:
        return (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
