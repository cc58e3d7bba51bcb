"""What sequences begin with in the plan being made that the same plan computes for others.

Owns who joins whose tokens until the plan is done. Which tokens these are is chosen in ``open_blocks``.
"""

from __future__ import annotations

from headrace.core.sequence import Sequence
from headrace.core.step import JoinedTokens


class Joints:
    """The joints of one plan at a time. One thread only."""

    def __init__(self) -> None:
        self._joined: dict[int, tuple[Sequence, tuple[JoinedTokens, ...]]] = {}

    def __len__(self) -> int:
        return len(self._joined)

    def add(self, seq: Sequence, joined: tuple[JoinedTokens, ...]) -> None:
        if joined:
            self._joined[seq.seq_id] = (seq, joined)

    def of(self, seq: Sequence) -> tuple[JoinedTokens, ...]:
        """What a sequence joins, in order."""
        return self._joined[seq.seq_id][1] if seq.seq_id in self._joined else ()

    def followers(self, seq: Sequence) -> list[Sequence]:
        """Those that join tokens of ``seq``, and so cannot start in this plan without it."""
        joined = self._joined.values()
        return [other for other, parts in joined if any(part.seq_id == seq.seq_id for part in parts)]

    def drop(self, seq: Sequence) -> None:
        """A sequence will not start. No effect on one that joins nothing."""
        self._joined.pop(seq.seq_id, None)

    def take_all(self) -> list[tuple[Sequence, tuple[JoinedTokens, ...]]]:
        """All of them, now that the plan is done."""
        taken, self._joined = list(self._joined.values()), {}
        return taken
