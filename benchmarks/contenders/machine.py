"""What this machine can do at most, measured beside the contenders, and what it is."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contenders.programs import run
from contenders.scenario import MeasurementError

SOURCE = Path(__file__).with_name("machine_limits.c")


@dataclass(frozen=True, slots=True)
class Limits:
    """Reading memory, 8-bit products and float32 products with all threads, one product counted as two operations."""

    read_gb_s: float
    int8_gop_s: float
    float32_gflop_s: float
    int8_instruction: str


def measure_limits(threads: int) -> Limits:
    """A few seconds of work in a small C program. Raises ``MeasurementError`` where it cannot be compiled."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise MeasurementError("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "machine_limits")
        run([compiler, "-O3", "-march=native", "-pthread", str(SOURCE), "-o", program])
        measured = json.loads(run([program, str(threads)]))
    del measured["sink"]
    return Limits(**measured)


class OthersCpu:
    """How many cores others keep busy while something of ours is measured.

    Counts the CPU time of the whole machine, less that of this process and of its children that have ended.
    Where the system does not tell (no ``/proc/stat``) the answer is NaN.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._others_s = self._now()

    def cores(self) -> float:
        return (self._now() - self._others_s) / (time.perf_counter() - self._started)

    @staticmethod
    def _now() -> float:
        stat = Path("/proc/stat")
        if not stat.exists():
            return math.nan
        user, nice, system, _idle, _iowait, irq, softirq = (int(v) for v in stat.read_text().split()[1:8])
        busy_s: float = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        times = os.times()
        return busy_s - sum(times[:4])


def describe_machine(threads: int) -> Mapping[str, str]:
    return {
        "cpu": cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(threads),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = (line for line in info.read_text().splitlines() if line.startswith("model name")) if info.exists() else ()
    return next((line.partition(":")[2].strip() for line in names), platform.processor() or platform.machine())
