"""Memory for packed weights: one stretch in huge pages, matrices in the order in which they are used.

A step of few tokens waits for memory alone, and reads all weights once, from the first to the last. Fetching ahead
then runs from matrix to matrix, and a huge page takes one address translation where small ones take 512. Knows
nothing of what lies in it.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.native.operations import ALIGNMENT

ByteArray = NDArray[np.uint8]

_HUGE_PAGE_BYTES = 2 << 20


def side_by_side(sizes: Sequence[int]) -> list[ByteArray]:
    """Zeros: an array of each of ``sizes`` bytes, aligned to ``ALIGNMENT``, one after the other.

    Pages are taken as they are written to, and given back when the last of the arrays is gone.
    """
    steps = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    memory = _huge_pages(sum(steps))
    starts = np.cumsum([0, *steps])
    return [memory[start : start + size] for start, size in zip(starts.tolist(), sizes, strict=False)]


def _huge_pages(size: int) -> ByteArray:
    if sys.platform != "linux":
        return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)
    # private: the system gives shared memory no huge pages, and a child process has no business with weights
    pages = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)  # a wish: without huge pages the same memory is only slower
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE_BYTES
    return memory[start : start + size]
