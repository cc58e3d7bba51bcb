"""Threads that are kept on CPUs: which CPUs are chosen, and that threads stay there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.native import _native
from headrace.native.cpu_affinity import cpus_for


def machine(folder: Path, siblings: dict[int, str]) -> Path:
    for cpu, names in siblings.items():
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(names + "\n")
    return folder


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    cpus: set[int] = set()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
    return cpus


def test_only_cpus_of_this_process_are_chosen(tmp_path: Path, allowed: set[int]) -> None:
    allowed |= {2, 5, 9}
    assert cpus_for(2, tmp_path) == [2, 5]
    assert cpus_for(3, tmp_path) == [2, 5, 9]


def test_each_core_gets_a_thread_before_any_gets_a_second(tmp_path: Path, allowed: set[int]) -> None:
    allowed |= {0, 1, 2, 3}
    neighbours = machine(tmp_path / "neighbours", {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    assert cpus_for(4, neighbours) == [0, 2, 1, 3]
    halves = machine(tmp_path / "halves", {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert cpus_for(4, halves) == [0, 1, 2, 3]


def test_more_threads_than_cpus_are_refused_with_both_numbers(tmp_path: Path, allowed: set[int]) -> None:
    allowed |= {0, 1}
    with pytest.raises(ConfigError, match=r"threads is 3, .* may use 2; lower --threads to 2, or leave --pin-threads"):
        cpus_for(3, tmp_path)


def threads_of_this_process() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def test_workers_stay_on_their_cpus_and_the_caller_is_left_alone() -> None:
    before, allowed = threads_of_this_process(), os.sched_getaffinity(0)
    pool = _native.ThreadPool(3)
    cpus = [sorted(allowed)[thread % len(allowed)] for thread in range(3)]
    pool.pin_workers(cpus)
    workers = threads_of_this_process() - before
    assert sorted(sorted(os.sched_getaffinity(worker)) for worker in workers) == sorted([cpu] for cpu in cpus[1:])
    assert os.sched_getaffinity(threading.get_native_id()) == allowed


def test_a_cpu_outside_of_those_the_process_was_started_on_is_refused() -> None:
    """Without a cpuset the system itself would allow it."""
    ours, others = sorted(os.sched_getaffinity(0))[0], sorted(os.sched_getaffinity(0))[1:]
    if not others:
        pytest.skip("this process has one CPU")
    lines = [
        "import os",
        f"os.sched_setaffinity(0, [{ours}])",
        "from headrace.native import _native",
        f"_native.ThreadPool(2).pin_workers([{ours}, {others[0]}])",
    ]
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert f"ValueError: CPU {others[0]} is not one that this process may use" in result.stderr


def test_cpus_that_are_none_or_too_few_are_refused() -> None:
    pool = _native.ThreadPool(2)
    for cpus in ([0], [0, -1], [0, 1 << 20]):
        with pytest.raises(ValueError, match=r"each of the 2 threads|may use"):
            pool.pin_workers(cpus)
