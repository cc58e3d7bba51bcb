"""Memory that loading has freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FREES_MUCH_BELOW_ONE_LIVE_BLOCK = """
import gc
from headrace.engine.heap import HeapReserve, settle_heap

def resident_kb():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))

blocks = [bytes(64_000) + b"x" for _ in range(1_000)]
last = blocks[-1]
blocks.clear()
before = resident_kb()
{action}
print(before - resident_kb(), gc.get_freeze_count())
"""


needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries return freed pages by themselves"
)


def returned_kb_and_frozen(action: str) -> tuple[int, int]:
    command = [sys.executable, "-c", _FREES_MUCH_BELOW_ONE_LIVE_BLOCK.replace("{action}", action)]
    returned_kb, num_frozen = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(returned_kb), int(num_frozen)


@needs_glibc
def test_freed_memory_is_returned_and_living_objects_are_left_out_of_collections() -> None:
    returned_kb, num_frozen = returned_kb_and_frozen("settle_heap()")
    assert returned_kb > 40_000
    assert num_frozen > 1_000


@needs_glibc
def test_a_heap_that_may_not_grow_returns_what_it_keeps() -> None:
    returned_kb, num_frozen = returned_kb_and_frozen("HeapReserve().stop_growing()")
    assert returned_kb > 40_000
    assert num_frozen == 0
