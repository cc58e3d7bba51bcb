"""The one-line summary of where a reply's time went: the ``x-headrace-timing`` header.

Seconds in the queue, computing the prompt, generating, and lost to preemptions, and how much of the prompt was
cached: ``queue=0.012, prefill=0.080, decode=1.203, preempted=0.000, cached=96/120``. What is not over is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from headrace.core.request import RequestTimes
from headrace.server.generation import Delta

TIMING_HEADER = b"x-headrace-timing"


class Timing(Protocol):
    """What the two ways to answer need of it."""

    def observe(self, deltas: Iterable[Delta]) -> None:
        """Take in what a reply is made of."""
        ...

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The header with the line as far as it is known."""
        ...

    def comment(self) -> bytes:
        """The line as a comment of an event stream, which its readers skip."""
        ...


class NoTiming:
    """For servers that tell no times."""

    def observe(self, deltas: Iterable[Delta]) -> None:
        pass

    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    def comment(self) -> bytes:
        return b""


class TimingLine:
    """Follows the times of a reply's sequences; the reply is as slow as the slowest of them."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, int], RequestTimes] = {}
        self._cached: dict[int, tuple[int, int]] = {}

    def observe(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            output = delta.output
            if output.times is not None:
                self._times[delta.prompt_index, output.index] = output.times
            if output.index == 0 or delta.prompt_index not in self._cached:
                usage = output.usage
                self._cached[delta.prompt_index] = (usage.num_cached_tokens, usage.num_prompt_tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        text = self.text()
        return [(TIMING_HEADER, text.encode())] if text else []

    def comment(self) -> bytes:
        text = self.text()
        return b": %s %s\n\n" % (TIMING_HEADER, text.encode()) if text else b""

    def text(self) -> str:
        """The line as far as it is known; empty while nothing is."""
        if not self._times:
            return ""
        slowest = max(self._times.values(), key=_known_until)
        spans = {
            "queue": slowest.first_scheduled - slowest.arrival,
            "prefill": slowest.first_token - slowest.first_scheduled,
            "decode": slowest.finished - slowest.first_token - slowest.preempted_s,
            "preempted": slowest.preempted_s if not math.isnan(slowest.finished) else math.nan,
        }
        parts = [f"{name}={max(0.0, span):.3f}" for name, span in spans.items() if not math.isnan(span)]
        num_cached, num_prompt = (sum(counts) for counts in zip(*self._cached.values(), strict=True))
        return ", ".join([*parts, f"cached={num_cached}/{num_prompt}"])


def _known_until(times: RequestTimes) -> float:
    moments = (times.finished, times.first_token, times.first_scheduled, times.arrival)
    return next(moment for moment in moments if not math.isnan(moment))
