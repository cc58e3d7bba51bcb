"""The faults that users of servers of this kind report most are numbered, and each is a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
NUMBERS = {f"b{number:02}" for number in range(1, 40)}

WITHOUT = {
    "b11",  # the loss of a replica: there are no replicas yet
    "b38",  # a turn of a session that is cut off: there are no sessions
}


def test_every_fault_of_the_pool_that_can_happen_here_is_a_test() -> None:
    sources = [path.read_text() for path in TESTS.rglob("test_*.py")]
    named = {name for source in sources for name in re.findall(r"def test_(b\d\d)_", source)}
    assert NUMBERS - named == WITHOUT
