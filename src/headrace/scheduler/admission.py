"""Whether a request can be served in time, told when it arrives and again while it waits.

Owns the estimate of how fast prompts are computed and the refusals made of it. It does not know the order in
detail, nor anything of HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from headrace.core.errors import Overloaded
from headrace.core.sequence import Sequence
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

    def check(self, arrival: Waiter, waiting: Iterable[Waiter], num_running_tokens: int, now: float) -> None:
        """Raise ``Overloaded`` if the first token cannot come in time, or too much that may be late waits.

        ``arrival`` is the place the request would get, ``num_running_tokens`` what is left to compute of prompts
        that have started and go before it. Costs O(waiting).
        """
        if arrival.seq.request.service_level.may_be_late:
            self._check_late_room(arrival, waiting)
        elif first_token_deadline(arrival.seq) < math.inf:
            num_ahead = num_running_tokens + self._num_tokens_ahead(arrival, waiting)
            self._check_deadline(arrival, num_ahead, now)

    def too_late(self, seq: Sequence, num_waiting_tokens: int) -> Overloaded:
        """The refusal of one whose time ran out while it waited."""
        return Overloaded(
            f"the first token cannot come within the requested {seq.request.service_level.ttft_s:g} s: more urgent "
            "work took longer than foretold; try again later or ask for a longer ttft",
            _retry_after_s(self._rate.seconds(num_waiting_tokens)),
        )

    def _check_deadline(self, arrival: Waiter, num_ahead: int, now: float) -> None:
        seq = arrival.seq
        wait_s = self._rate.seconds(num_ahead + arrival.num_uncached)
        if wait_s == 0:
            return
        late_s = now + wait_s + first_token_margin_s(seq) - first_token_deadline(seq)
        if late_s <= 0:
            return
        raise Overloaded(
            f"the first token would come in about {now + wait_s - seq.request.arrival_time:.2f} s or a step later but "
            f"was requested within {seq.request.service_level.ttft_s:g} s: {num_ahead} prompt tokens are ahead of its "
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

    def _num_tokens_ahead(self, arrival: Waiter, waiting: Iterable[Waiter]) -> int:
        """Prompt tokens of those who would go first: due earlier, and not of a tenant that is ahead of its share."""
        bucket = arrival.key[0]
        counters = self._counters
        limit = counters.value_on_entry(arrival.seq.request.tenant) + counters.quantum
        num_tokens = 0
        for waiter in waiting:
            if waiter.key[0] <= bucket and counters.value(waiter.seq.request.tenant) <= limit:
                num_tokens += waiter.num_uncached
        return num_tokens


def _retry_after_s(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
