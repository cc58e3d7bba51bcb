"""The machine as a report remembers it."""

from __future__ import annotations

import os
import platform

from headrace.bench.report import Machine
from headrace.cli.machine import read_cpu


def this_machine() -> Machine:
    cpu = read_cpu()
    return Machine(
        cpu=cpu.name,
        num_cores=cpu.num_cores,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        load_average=os.getloadavg()[0],
        python=platform.python_version(),
    )
