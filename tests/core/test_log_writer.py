"""A log that nobody waits for."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from headrace.core.log_writer import LogWriter, log_handler


@dataclass
class Pipe:
    reading: int
    writing: int

    def read(self, until: bytes) -> bytes:
        found = b""
        while until not in found:
            found += os.read(self.reading, 1 << 16)
        return found


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    yield pipe
    os.close(pipe.reading)  # what is still being written ends in an error


def logger_over(handler: logging.Handler) -> logging.Logger:
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_lines_are_written_in_order(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing)
    logger = logger_over(writer)
    for number in range(100):
        logger.info("line %d \udcff", number)
    writer.flush()
    lines = pipe.read(b"line 99 \\udcff\n").decode().splitlines()
    assert lines == [f"INFO line {number} \\udcff" for number in range(100)]


def test_nobody_waits_for_a_reader_and_what_was_dropped_is_counted(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, max_lines=300)
    logger = logger_over(writer)
    started = time.monotonic()
    for number in range(2000):  # two megabytes, and a pipe takes 64 KiB
        logger.warning("%06d %s", number, "x" * 1000)
    writer.flush()
    assert time.monotonic() - started < 10

    with ThreadPoolExecutor(1) as beside:
        text = beside.submit(pipe.read, b"the end\n")
        while writer._lines.qsize():  # a full queue would drop the end as well
            time.sleep(0.001)
        logger.warning("the end")
        lines = text.result().decode().splitlines()
    dropped = [int(line.split()[-1]) for line in lines if "dropped here" in line]
    kept = [int(line.split()[1]) for line in lines if line.startswith("WARNING 0")]
    assert kept == sorted(kept)
    assert len(kept) + sum(dropped) == 2000
    assert len(kept) >= 300
    assert dropped


def test_what_was_dropped_last_is_told_at_the_end(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, max_lines=0)
    logger_over(writer).warning("nobody reads this")
    writer.flush()
    assert pipe.read(b"\n") == b"log lines dropped here, as nobody read them: 1\n"


def test_a_reader_that_is_gone_is_no_error(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing)
    os.close(pipe.reading)
    pipe.reading = os.open(os.devnull, os.O_RDONLY)
    logger_over(writer).error("nobody hears")
    writer.flush()


def test_what_cannot_be_formatted_does_not_end_the_log(pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    writer = LogWriter(pipe.writing)
    logger = logger_over(writer)
    logger.error("%d", "no number")
    logger.error("next")
    assert pipe.read(b"next\n") == b"ERROR next\n"
    assert "no number" in capsys.readouterr().err


def test_a_stream_without_a_descriptor_is_written_to() -> None:
    stream = io.StringIO()
    logger_over(log_handler(stream)).info("here")
    assert stream.getvalue() == "INFO here\n"
