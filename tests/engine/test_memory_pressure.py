"""When memory counts as short, and for how long."""

from __future__ import annotations

import logging

import pytest

from headrace.core.errors import ConfigError
from headrace.core.memory_pressure import PressureLevel
from headrace.engine.memory_pressure import READ_INTERVAL_S, MemoryWatch, judge
from headrace.executor.machine_memory import MachineMemory, MemoryReading

MIB = 1 << 20
GIB = 1 << 30
CALM, TIGHT, SCARCE, CRITICAL = PressureLevel


def level(left: int, *, capacity: int = GIB, untaken: int = 0, stalled: float = 0.0, before: int = 0) -> PressureLevel:
    return judge(MemoryReading(left, capacity, stalled), untaken, PressureLevel(before))


@pytest.mark.parametrize(
    ("left", "expected"),
    [(52 * MIB, CALM), (51 * MIB, SCARCE), (21 * MIB, SCARCE), (20 * MIB, CRITICAL), (0, CRITICAL)],
)
def test_a_small_machine_keeps_a_twentieth_and_a_fiftieth(left: int, expected: PressureLevel) -> None:
    assert level(left) is expected


@pytest.mark.parametrize(("left", "expected"), [(513 * MIB, CALM), (511 * MIB, SCARCE), (191 * MIB, CRITICAL)])
def test_a_large_machine_keeps_so_much_and_no_more(left: int, expected: PressureLevel) -> None:
    assert level(left, capacity=1024 * GIB) is expected


def test_memory_is_tight_when_the_caches_may_take_what_is_left() -> None:
    assert level(500 * MIB, untaken=400 * MIB) is CALM
    assert level(500 * MIB, untaken=480 * MIB) is TIGHT


def test_stalls_stop_growth_and_admission_and_end_nobody() -> None:
    assert [level(GIB, stalled=share) for share in (0.05, 0.06, 0.2, 0.21, 1.0)] == [CALM, TIGHT, TIGHT, SCARCE, SCARCE]


def test_a_level_is_left_only_with_a_quarter_more_than_it_was_entered_for() -> None:
    assert level(60 * MIB, before=SCARCE) is SCARCE
    assert level(65 * MIB, before=SCARCE) is CALM
    assert level(24 * MIB, before=CRITICAL) is CRITICAL
    assert level(26 * MIB, before=CRITICAL) is SCARCE
    assert level(GIB, stalled=0.17, before=SCARCE) is SCARCE
    assert level(GIB, stalled=0.15, before=SCARCE) is TIGHT


class Gauge:
    def __init__(self, *readings: MemoryReading | Exception) -> None:
        self.readings = list(readings)

    def read(self) -> MemoryReading:
        reading = self.readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading


def test_a_watch_reads_now_and_then_and_says_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    gauge = Gauge(MemoryReading(GIB, GIB), MemoryReading(10 * MIB, GIB), MemoryReading(GIB, GIB))
    watch = MemoryWatch(gauge, lambda: 0)
    with caplog.at_level(logging.INFO):
        states = [watch.state(moment * READ_INTERVAL_S / 2) for moment in range(6)]
    assert [state.level for state in states] == [CALM, CALM, CRITICAL, CRITICAL, CALM, CALM]
    assert states[2].available_bytes == 10 * MIB
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "lowest tier are ended; 10.0 MiB of 1.0 GiB are left" in caplog.text


@pytest.mark.parametrize("error", [ConfigError("no MemAvailable"), OSError("too many open files")])
def test_a_reading_that_fails_changes_nothing(error: Exception) -> None:
    watch = MemoryWatch(Gauge(MemoryReading(10 * MIB, GIB), error), lambda: 0)
    assert watch.state(0.0) == watch.state(READ_INTERVAL_S)
    assert watch.state(READ_INTERVAL_S).level is CRITICAL


def test_what_the_caches_have_taken_since_counts() -> None:
    untaken = [490 * MIB]
    watch = MemoryWatch(Gauge(MemoryReading(500 * MIB, GIB), MemoryReading(500 * MIB, GIB)), lambda: untaken[0])
    assert watch.state(0.0).level is TIGHT
    untaken[0] = 0
    assert watch.state(READ_INTERVAL_S).level is CALM


def test_this_machine_can_be_watched() -> None:
    assert MemoryWatch(MachineMemory(), lambda: 0).state(0.0).available_bytes > 0
