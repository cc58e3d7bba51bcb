"""A slice of the aborts that ``make torture WHAT=aborts`` makes a hundred thousand of."""

from __future__ import annotations

from pathlib import Path

from tests.tiny_model import write_tiny_model
from tests.torture.aborts import run_aborts


def test_requests_ended_at_any_moment_leave_nothing(tmp_path: Path) -> None:
    found = run_aborts(2000, write_tiny_model(tmp_path))
    assert found.faults == []
    assert found.num_aborts >= 2000
    assert min(found.num_preemptions, found.num_swapped_out, found.ends["length"]) > 0, "too quiet a life"
