"""Whether a request can be served in time, told when it arrives and again while it waits.

Owns the estimate of how fast prompts are computed and the refusals made of it. It does not know the order in
detail, nor anything of HTTP. Who is refused when not everybody can be in time follows Moore, "An n Job, One Machine
Sequencing Algorithm for Minimizing the Number of Late Jobs" (1968): the largest of those due before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from headrace.core.errors import Overloaded
from headrace.scheduler.fairness import ServiceCounters
from headrace.scheduler.pace import first_token_deadline, first_token_margin_s
from headrace.scheduler.waiting_lanes import Waiter

MAX_LATE_TOKENS: Final = 1 << 18
"""Most prompt tokens that requests which may be late can have waiting."""

MIN_RETRY_AFTER_S: Final = 1.0
MAX_RETRY_AFTER_S: Final = 60.0
_SMOOTHING: Final = 0.95


class PrefillRate:
    """Prompt tokens per second that are granted beside the running streams; 0 while nothing is known."""

    def __init__(self) -> None:
        self.tokens_per_s = 0.0

    def observe(self, tokens_per_s: float) -> None:
        """Take in what one step granted, or could have."""
        if self.tokens_per_s <= 0:
            self.tokens_per_s = tokens_per_s
        else:
            self.tokens_per_s = _SMOOTHING * self.tokens_per_s + (1 - _SMOOTHING) * tokens_per_s

    def seconds(self, num_tokens: float) -> float:
        """How long so many tokens take; nothing while nothing is known, as nobody is refused on a guess."""
        return num_tokens / self.tokens_per_s if self.tokens_per_s > 0 else 0.0


class Admission:
    """Answers at the door. Refuses with ``Overloaded``, whose ``retry_after_s`` is when the answer may differ."""

    def __init__(self, counters: ServiceCounters, rate: PrefillRate) -> None:
        self._counters = counters
        self._rate = rate

    def check(self, arrival: Waiter, waiting: Collection[Waiter], num_running_tokens: int, now: float) -> Waiter | None:
        """Raise ``Overloaded`` if the first token cannot come in time, or too much that may be late waits.

        ``arrival`` is the place the request would get, ``num_running_tokens`` what is left to compute of prompts
        that have started and go before it. Returns who is refused in its stead, if that lets it be in time: one
        before it that has not begun, of a looser tier or the same and with more to compute. Costs O(waiting).
        """
        if arrival.seq.request.service_level.may_be_late:
            self._check_late_room(arrival, waiting)
            return None
        if first_token_deadline(arrival.seq) == math.inf:
            return None
        ahead = self._ahead(arrival, waiting)
        num_ahead = num_running_tokens + sum(waiter.num_uncached for waiter in ahead)
        late_s = self._late_s(arrival, num_ahead, now)
        if late_s <= 0:
            return None
        displaced = max((waiter for waiter in ahead if _gives_way(waiter, arrival)), key=_burden, default=None)
        if displaced is None or self._rate.seconds(displaced.num_uncached) < late_s:
            raise self._refusal(arrival, num_ahead, late_s, now)
        return displaced

    def too_late(self, waiter: Waiter, num_waiting_tokens: int) -> Overloaded:
        """The refusal of one whose time ran out while it waited, or that gave way."""
        ttft_s = waiter.seq.request.service_level.ttft_s
        reason = "more urgent work took longer than foretold"
        if waiter.gave_way:
            reason = f"more came than can be done in time, and its {waiter.num_uncached} prompt tokens are the most"
        return Overloaded(
            f"the first token cannot come within the requested {ttft_s:g} s: {reason}; try again later or ask for a "
            "longer ttft",
            _retry_after_s(self._rate.seconds(num_waiting_tokens)),
        )

    def _late_s(self, arrival: Waiter, num_ahead: int, now: float) -> float:
        """By how much the first token is foretold to miss; nothing while nothing is known."""
        wait_s = self._rate.seconds(num_ahead + arrival.num_uncached)
        if wait_s == 0:
            return 0.0
        return now + wait_s + first_token_margin_s(arrival.seq) - first_token_deadline(arrival.seq)

    def _refusal(self, arrival: Waiter, num_ahead: int, late_s: float, now: float) -> Overloaded:
        request = arrival.seq.request
        wait_s = self._rate.seconds(num_ahead + arrival.num_uncached)
        return Overloaded(
            f"the first token would come in about {now + wait_s - request.arrival_time:.2f} s or a step later but "
            f"was requested within {request.service_level.ttft_s:g} s: {num_ahead} prompt tokens are ahead of its "
            f"{arrival.num_uncached}; try again later or ask for a longer ttft",
            _retry_after_s(late_s),
        )

    def _check_late_room(self, arrival: Waiter, waiting: Iterable[Waiter]) -> None:
        num_waiting = sum(waiter.num_uncached for waiter in waiting if waiter.seq.request.service_level.may_be_late)
        if num_waiting == 0 or num_waiting + arrival.num_uncached <= MAX_LATE_TOKENS:
            return
        raise Overloaded(
            f"{num_waiting} prompt tokens of requests that may be late are waiting and at most {MAX_LATE_TOKENS} may, "
            f"so {arrival.num_uncached} more are not taken; try again later",
            _retry_after_s(self._rate.seconds(num_waiting + arrival.num_uncached - MAX_LATE_TOKENS)),
        )

    def _ahead(self, arrival: Waiter, waiting: Iterable[Waiter]) -> list[Waiter]:
        """Those who would go first: due earlier, and not of a tenant that is ahead of its share."""
        bucket = arrival.key[0]
        counters = self._counters
        limit = counters.value_on_entry(arrival.seq.request.tenant) + counters.quantum
        return [
            waiter
            for waiter in waiting
            if not waiter.gave_way and waiter.key[0] <= bucket and counters.value(waiter.seq.request.tenant) <= limit
        ]


def _gives_way(waiter: Waiter, arrival: Waiter) -> bool:
    """Whether one that waits is refused rather than ``arrival``."""
    seq = waiter.seq
    is_refusable = not seq.has_begun and not seq.request.service_level.may_be_late
    return is_refusable and first_token_deadline(seq) < math.inf and _burden(waiter) > _burden(arrival)


def _burden(waiter: Waiter) -> tuple[float, int]:
    """Who is refused first: the loosest tier, then whoever has the most to compute."""
    return (waiter.seq.request.service_level.ttft_s, waiter.num_uncached)


def _retry_after_s(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
