"""The machine is read from its own accounts, given here as files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headrace.cli.machine import nearest_folder, port_error, read_cpu, usable_cores

CORES = len(os.sched_getaffinity(0))

X86 = """processor\t: 0
model name\t: Some CPU @ 2.00GHz
flags\t\t: fpu sse4_2 avx2 fma avx512f

processor\t: 1
model name\t: Another
"""


def test_a_cpu_is_its_first_processors_name_and_fast_instructions(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    cpu = read_cpu(tmp_path / "cpuinfo", tmp_path / "none")
    assert (cpu.name, cpu.flags, cpu.num_cores) == ("Some CPU @ 2.00GHz", ("avx2", "fma", "avx512f"), CORES)


def test_a_system_without_accounts_still_has_a_cpu(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path / "none", tmp_path / "none")
    assert cpu.name
    assert cpu.flags == ()


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", CORES), ("50000 100000", 0.5), ("999900000 100000", CORES), ("", CORES)]
)
def test_a_quota_can_only_lower_the_cores(quota: str, cores: float) -> None:
    assert usable_cores(quota) == cores


def test_the_nearest_folder_is_the_closest_that_exists(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path) == tmp_path
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path


def test_a_port_is_free_or_says_why_not() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "in use" in port_error("127.0.0.1", port)
    assert port_error("127.0.0.1", port) == ""
    assert port_error("127.0.0.1", 0) == ""
    assert port_error("192.0.2.1", 0) != ""
