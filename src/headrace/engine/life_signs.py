"""Whether a process that is not known to be dead can be called alive. Time is an argument; no process here."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 4.0
"""A step may take so many times what is foretold of it: others use the machine, too."""


class LifeSigns:
    """What was last heard of an engine process: that it spoke, and how long its engine thread was at one step.

    An engine is alive while neither its silence nor the excess of its current step is longer than ``limit_s``. A
    process whose threads still answer while its engine thread hangs is as useless as a frozen one; but a step that
    was foretold to take a minute does not hang after half of one.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard_at = 0.0
        self._tick_start = 0.0
        self.expected_s = 0.0

    def note_message(self, now: float) -> None:
        self._heard_at = now

    def note_tick(self, age_s: float, now: float, expected_s: float = 0.0) -> None:
        """The engine thread has been at its current step for ``age_s``, foretold to take ``expected_s``; 0 if idle."""
        self._tick_start = now - age_s
        self.expected_s = expected_s

    def silence_s(self, now: float) -> float:
        return now - self._heard_at

    def tick_age_s(self) -> float:
        """Age of the current step as of the last message."""
        return max(self._heard_at - self._tick_start, 0.0)

    def tick_excess_s(self) -> float:
        """How much longer the current step takes than patience with it lasts, as of the last message."""
        return max(self.tick_age_s() - PATIENCE * self.expected_s, 0.0)

    def is_alive(self, now: float) -> bool:
        return self.silence_s(now) <= self._limit_s and self.tick_excess_s() <= self._limit_s
