"""Sequences that run on a guess get what the others leave: a policy around any other.

Owns the rule that a guess never takes from anybody: it starts when nobody else waits, computes in steps that have room
for it at no cost, and gives its blocks back first. It does not know who guesses, or what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.core.sequence import Sequence
from headrace.scheduler.meters import SchedulingMeters
from headrace.scheduler.policy import NO_LIMIT, SchedulingPolicy, StepShape
from headrace.scheduler.waiting_queue import WaitingLine

PROMPT_TOKENS: Final = 32
"""Tokens of a guess's prompt that a step computes: the only time it takes from others, once for each guess."""

MAX_GUESSES_ALONE: Final = 4
"""How many guesses run when nothing else does."""


class GuessesLast:
    """See ``SchedulingPolicy``; ``inner`` decides about everybody but guesses, and never hears of these.

    A guess that turns out right is moved to the others wherever it is (``Sequence.is_guess`` changes). Costs nothing
    while there are no guesses.
    """

    def __init__(self, inner: SchedulingPolicy, max_num_batched_tokens: int, meters: SchedulingMeters) -> None:
        self._inner = inner
        self._max_num_batched_tokens = max_num_batched_tokens
        self._meters = meters
        self._line = _GuessesLastLine(inner.line)

    @property
    def line(self) -> WaitingLine:
        return self._line

    def admit(self, seq: Sequence, now: float) -> None:
        if not seq.is_guess:
            self._inner.admit(seq, now)

    def shape_step(self, running: Collection[Sequence], now: float) -> StepShape:
        """As ``inner`` shapes it, with the guesses after everybody else where there is room for them."""
        self._line.settle()
        guesses = [seq for seq in running if seq.is_guess]
        if not guesses and not self._line.num_guesses:
            return self._inner.shape_step(running, now)
        others = [seq for seq in running if not seq.is_guess]
        shape = self._inner.shape_step(others, now)
        if not others and self._line.num_others:
            self._line.num_may_start = 0
            # Those who wait go first. If none of them can start, the guesses must go on, or nobody would.
            decoding = [seq for seq in guesses if seq.num_pending_tokens == 1]
            return _with_guesses(shape, decoding or guesses[:1], shape.token_budget)
        room = self._room(others)
        going_on = guesses[:room]
        self._line.num_may_start = room - len(going_on)
        if room == 0:
            return shape
        num_tokens = sum(min(seq.num_pending_tokens, PROMPT_TOKENS) for seq in going_on)
        num_tokens += PROMPT_TOKENS * min(self._line.num_may_start, self._line.num_guesses)
        return _with_guesses(shape, going_on, min(len(others) + num_tokens, self._max_num_batched_tokens))

    def victim(self, running: Iterable[Sequence], now: float) -> Sequence:
        candidates = list(running)
        guesses = [seq for seq in candidates if seq.is_guess]
        return guesses[-1] if guesses else self._inner.victim(candidates, now)

    def num_tokens_to_start(self, seq: Sequence, running: Collection[Sequence]) -> int:
        return self._inner.num_tokens_to_start(seq, running)

    def _room(self, others: Collection[Sequence]) -> int:
        """How many guesses decode beside ``others`` at no cost to them."""
        if not others:
            return MAX_GUESSES_ALONE
        if self._line.num_others or any(seq.num_pending_tokens != 1 for seq in others):
            return 0  # there are prompts to compute, whose tokens are not for nothing
        return max(self._meters.num_free_seqs - len(others), 0)


def _with_guesses(shape: StepShape, guesses: Iterable[Sequence], token_budget: int) -> StepShape:
    rest = [*shape.rest, *((NO_LIMIT, seq) for seq in guesses)]
    return StepShape(token_budget, shape.first, rest, shape.max_starts)


class _GuessesLastLine:
    """See ``WaitingLine``: everybody else in the order of ``inner``, then guesses in order of arrival."""

    def __init__(self, inner: WaitingLine) -> None:
        self._inner = inner
        self._guesses: dict[int, Sequence] = {}
        self.num_may_start = 0

    def __len__(self) -> int:
        return len(self._inner) + len(self._guesses)

    @property
    def num_guesses(self) -> int:
        return len(self._guesses)

    @property
    def num_others(self) -> int:
        return len(self._inner)

    def settle(self) -> None:
        """Move those that are guesses no more to the others."""
        for seq in [seq for seq in self._guesses.values() if not seq.is_guess]:
            del self._guesses[seq.seq_id]
            self._inner.push(seq)

    def push(self, seq: Sequence) -> None:
        if seq.is_guess:
            self._guesses[seq.seq_id] = seq
        else:
            self._inner.push(seq)

    def pop(self, urgency: float, now: float) -> Sequence | None:
        seq = self._inner.pop(urgency, now)
        if seq is None and self._guesses and self.num_may_start > 0 and not len(self._inner):
            self.num_may_start -= 1
            return self._guesses.pop(next(iter(self._guesses)))
        return seq

    def discard(self, seq: Sequence) -> None:
        if self._guesses.pop(seq.seq_id, None) is None:
            self._inner.discard(seq)

    def take_overdue(self, now: float) -> list[tuple[Sequence, HeadraceError]]:
        return self._inner.take_overdue(now)
