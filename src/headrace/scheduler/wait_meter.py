"""How many wait for what, and for how long altogether."""

from __future__ import annotations

from collections import Counter

from headrace.scheduler.waits import Waits


class WaitMeter:
    """Counts waiting sequences by what stood in their way in the latest step, and their seconds since the start."""

    def __init__(self) -> None:
        self.num_waiting: dict[str, int] = {}
        self.waited_s: dict[str, float] = {}
        self._planned_at = 0.0

    def note_plan(self, waits: Waits, now: float) -> None:
        """A step was decided."""
        self._planned_at = now
        counts = Counter(reason.value for _, reason in waits.held)
        if waits.reason is not None:
            counts[waits.reason.value] += max(0, waits.num_waiting - len(waits.held))
        self.num_waiting = dict(counts)

    def note_step(self, now: float) -> None:
        """The step that was decided last has ended; those who waited for it have waited that long."""
        for reason, count in self.num_waiting.items():
            self.waited_s[reason] = self.waited_s.get(reason, 0.0) + count * (now - self._planned_at)
