"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# asserts of the tests' own tools are to hold under python -O too
pytest.register_assert_rewrite(
    *(
        f"tests.{path.stem}"
        for path in Path(__file__).parent.iterdir()
        if path.stem[0] != "_" and path.stem != "conftest"
    )
)

settings.register_profile("headrace", deadline=None)  # how long an example takes says more of the machine
settings.load_profile("headrace")


@pytest.fixture(scope="session", autouse=True)
def _interrupts_work() -> Iterator[None]:
    """A shell starts what it runs in the background deaf to Ctrl-C, children included; here it must be heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
