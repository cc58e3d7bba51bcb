"""What is read of a process is what it holds."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

from tests.torture.processes import alive, descendants, num_files, num_threads, private_bytes

SIZE = 32 << 20


def test_b37_memory_is_what_a_process_alone_holds_and_not_the_files_it_maps(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(SIZE))
    before = private_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0  # every page is resident now
        assert private_bytes(os.getpid()) - before < SIZE / 4
        # not b"x" * SIZE: a heap that has as much to spare gives it without growing
        with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
            taken[:: mmap.PAGESIZE] = bytes(len(taken) // mmap.PAGESIZE)
            assert private_bytes(os.getpid()) - before > 0.9 * SIZE


def test_a_process_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert alive([child.pid]) == descendants(child.pid) == []
    assert num_threads(child.pid) == num_files(child.pid) == private_bytes(child.pid) == 0
