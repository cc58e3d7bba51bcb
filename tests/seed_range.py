"""Many seeds on all cores: how runs over random seeds are named, split and spread."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")

CHUNK = 50


def seed_range(text: str) -> range:
    """``START:STOP``, half-open, or one seed."""
    start, colon, stop = text.partition(":")
    try:
        first = int(start)
        return range(first, int(stop) if colon else first + 1)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a seed nor a range START:STOP") from None


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def in_chunks(work: Callable[[range], T], seeds: range, num_workers: int) -> Iterator[T]:
    """The result of ``work`` for each chunk of ``seeds``, in order; ``work`` is a module's function."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(num_workers) as pool:
        yield from pool.map(work, chunks)
