"""Weights lie side by side, each at a cache line, and memory goes when the last of them does."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.native.operations import ALIGNMENT
from headrace.native.weight_memory import side_by_side


def test_parts_are_zeros_of_the_sizes_asked_for_one_after_the_other() -> None:
    sizes = [1, 64, 65, 4096, 3]
    parts = side_by_side(sizes)
    assert [part.nbytes for part in parts] == sizes
    starts = [part.ctypes.data for part in parts]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert np.diff(starts).tolist() == [64, 64, 128, 4096]
    assert not any(part.any() for part in parts)


def test_what_is_written_to_one_part_stays_in_it() -> None:
    first, second = side_by_side([100, 100])
    first[:] = 1
    second[:] = 2
    assert first.tolist() == [1] * 100
    assert second.tolist() == [2] * 100


def test_no_parts_take_no_memory() -> None:
    assert side_by_side([]) == []
    (empty,) = side_by_side([0])
    assert empty.nbytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the mappings of a process are listed on Linux alone")
def test_memory_begins_a_huge_page_and_is_given_back_with_the_last_part() -> None:
    size = 3 << 20
    first, second = side_by_side([size, size])
    assert first.ctypes.data % (2 << 20) == 0
    address = first.ctypes.data
    del second
    assert is_mapped(address)
    del first
    gc.collect()
    assert not is_mapped(address + size // 2)


def is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)
