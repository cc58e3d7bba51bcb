from __future__ import annotations

import errno
import io

import pytest

from headrace.cli.progress import BarProgress, LineProgress, terminal_progress


def test_elsewhere_than_on_a_terminal_every_tenth_is_a_line() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start("downloading", 1000, "bytes")
    for _ in range(100):
        progress.advance(10)
    progress.finish()
    expected = ["downloading (1000 B)", *(f"downloading: {tenth} %" for tenth in range(10, 101, 10))]
    assert stream.getvalue().splitlines() == expected


def test_a_leap_over_several_tenths_is_one_line() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start("weights", 10, "tensors")
    progress.advance(7)
    progress.advance(5)  # more than was announced
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "weights (10 tensors)",
        "weights: 70 %",
        "weights: 90 %",
        "weights: 100 %",
    ]


def test_parameters_are_counted_as_people_count_them() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start("weights", 134_515_008, "parameters")
    progress.finish()
    assert stream.getvalue().splitlines()[0] == "weights (134.5 M parameters)"


def test_an_early_or_unmeasured_end_says_how_far_it_came() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start("downloading", 1000, "bytes")
    progress.advance(50)
    progress.finish()
    progress.start("waiting", None, "items")
    progress.finish()
    progress.start("downloading", None, "bytes")
    progress.advance(2048)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "downloading (1000 B)",
        "downloading: ended after 50 B",
        "waiting",
        "waiting: ended",
        "downloading",
        "downloading: ended after 2.0 KiB",
    ]


def test_a_bar_writes_to_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    progress = BarProgress()
    for total in (100, None):
        progress.start("downloading [x]", total, "bytes")
        progress.advance(40)
        progress.finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "downloading [x]" in captured.err


def test_a_log_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(terminal_progress(), LineProgress)  # the test's stderr is no terminal


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_a_log_on_a_full_disk_stops_no_work() -> None:
    progress = LineProgress(FullDisk())
    progress.start("weights", 10, "items")
    progress.advance(10)
    progress.finish()
