"""Offline progress is one line of a terminal that ends complete."""

from __future__ import annotations

import io
import sys

import pytest

from headrace.core.progress import NullProgress
from headrace.core.terminal_progress import TerminalProgress, terminal_progress


def shown(label: str, total: int | None, unit: str, *amounts: int) -> list[str]:
    """What the line showed, oldest first."""
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    progress.start(label, total, unit)  # type: ignore[arg-type]
    for amount in amounts:
        progress.advance(amount)
    progress.finish()
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text.rstrip("\n").split("\r\x1b[K")[1:]


def test_the_line_begins_empty_and_ends_full() -> None:
    lines = shown("generating", 4, "items", 1, 3)
    assert lines[0].startswith("generating  [........................] 0 / 4  0.0 s")
    assert lines[-1].startswith("generating  [########################] 4 / 4")


def test_an_unknown_total_is_counted_without_a_bar() -> None:
    assert shown("waiting", None, "items", 2)[-1].startswith("waiting  2  ")


def test_bytes_are_shown_as_people_read_them() -> None:
    assert "1.0 MiB / 2.0 MiB" in shown("weights", 2 << 20, "bytes", 1 << 20)[-1]


def test_many_small_advances_draw_few_times() -> None:
    assert len(shown("tokens", 100_000, "items", *([1] * 100_000))) < 1000


def test_a_library_does_not_write_into_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(terminal_progress(), NullProgress)
