"""The waiting line of the SLO policy: earliest deadline first, fair between tenants, cached prefixes preferred.

Owns the order among those who wait and who of them is too late. It does not know what runs, how much a step
may hold or when anybody may start.

Within a lane (sequences with similar targets) the tenant with the least service goes first, within a tenant the
earliest deadline bucket, within a bucket the program nearest to its end, then the longest cached prefix, then the least
to compute. Between lanes the earliest bucket decides. Nothing is sorted again as time passes: slack shrinks alike for
all, so the moment a token is due is a fixed key. A step costs O(lanes * log waiting), and there are a handful of lanes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from headrace.core.errors import HeadraceError
from headrace.core.sequence import Sequence
from headrace.scheduler.fairness import CACHED_TOKEN_COST, ServiceCounters

BUCKET_S: Final = 0.05
"""Tokens due within so much of each other count as equally urgent, which is where locality and fairness have room."""

MAX_TENANTS_COMPARED: Final = 8

LATE_PATIENCE_S: Final = 30.0
"""How long one that is late lets others go before it."""

MAX_SCALE: Final = 32
"""Lane of those without a TTFT target."""

_GAVE_WAY: Final = -math.inf
"""Cutoff of one that gave way."""

_Key = tuple[int, int, int, int, float, int]


@dataclass(slots=True, eq=False)
class Waiter:
    """A sequence in the line with what its place depends on.

    ``due`` is when its next token should be out. ``home`` is the lane it belongs to, ``lane`` the same
    while it stands there and ``None`` while it does not. One that ``gave_way`` to another is about to be refused.
    """

    seq: Sequence
    due: float
    num_cached: int
    num_uncached: int
    home: TenantLane
    lane: TenantLane | None = None
    gave_way: bool = False
    key: _Key = field(init=False)

    def __post_init__(self) -> None:
        self.place(self.due)

    @property
    def cost(self) -> float:
        """What starting it would charge its tenant."""
        num_found = len(self.seq.token_ids) - self.num_uncached
        return (self.num_uncached + CACHED_TOKEN_COST * num_found) / self.seq.request.weight

    def place(self, due: float) -> None:
        """Set the order key."""
        self.due = due
        seq = self.seq
        bucket = math.floor(due / BUCKET_S)
        num_missing = len(seq.token_ids) - self.num_cached
        request = seq.request
        self.key = (bucket, request.num_tokens_left, -self.num_cached, num_missing, request.order_time, seq.seq_id)


class TenantLane:
    """Waiting sequences of similar targets. Push, head and take are O(log n) in sequences and tenants."""

    def __init__(self, counters: ServiceCounters) -> None:
        self._counters = counters
        self._queues: dict[str, list[tuple[_Key, Waiter]]] = {}
        self._turns: list[tuple[float, str]] = []
        self._num_waiting = 0
        self._num_kept = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, waiter: Waiter) -> None:
        tenant = waiter.seq.request.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = []
            heapq.heappush(self._turns, (self._counters.value(tenant), tenant))
        heapq.heappush(queue, (waiter.key, waiter))
        waiter.lane = self
        self._num_waiting += 1
        self._num_kept += 1

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out of the lane: at once if it is its tenant's first, else its entry goes when it comes up."""
        assert waiter.lane is self
        waiter.lane = None
        self._num_waiting -= 1
        queue = self._queues[waiter.seq.request.tenant]
        if queue[0][1] is waiter:
            heapq.heappop(queue)
            self._num_kept -= 1
        if self._num_kept > 2 * self._num_waiting + 64:
            self._drop_removed()

    def head(self) -> Waiter | None:
        """Who is next: of the tenants that would stay within a quantum of the last, the first in order."""
        best: Waiter | None = None
        looked_at: list[tuple[float, str]] = []
        limit = math.inf
        while self._turns and len(looked_at) < MAX_TENANTS_COMPARED:
            value, tenant = heapq.heappop(self._turns)
            waiter = self._first_of(tenant)
            if waiter is None:
                continue
            current = self._counters.value(tenant)
            if current > value:  # counters only grow, so an old value only says that it cannot be lower
                heapq.heappush(self._turns, (current, tenant))
                continue
            looked_at.append((value, tenant))
            limit = min(limit, value + self._counters.quantum)
            if value > limit:
                break
            if best is None or (value + waiter.cost <= limit and waiter.key < best.key):
                best = waiter
        for turn in looked_at:
            heapq.heappush(self._turns, turn)
        return best

    def _first_of(self, tenant: str) -> Waiter | None:
        """A tenant's first waiter; forgets the tenant if there is none."""
        queue = self._queues[tenant]
        while queue and queue[0][1].lane is not self:
            heapq.heappop(queue)
            self._num_kept -= 1
        if queue:
            return queue[0][1]
        del self._queues[tenant]
        return None

    def _drop_removed(self) -> None:
        for queue in self._queues.values():
            queue[:] = [item for item in queue if item[1].lane is self]
            heapq.heapify(queue)
        self._num_kept = self._num_waiting


class Placement(Protocol):
    """What the line needs to know of a sequence to place it."""

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Tokens the prefix cache would save it."""
        ...

    def due(self, seq: Sequence) -> float:
        """When its next token should be out."""
        ...

    def cutoff(self, seq: Sequence, num_cached: int) -> float:
        """After which its first token cannot come in time any more; infinite if that ends nothing."""
        ...

    def too_late(self, waiter: Waiter) -> HeadraceError:
        """What to tell the caller of one that missed its cutoff or gave way."""
        ...


class WaitingLanes:
    """A ``WaitingLine`` with one lane per order of magnitude of the TTFT target, and one for the late.

    Those who missed their cutoff and may be late stand in the late lane. They go when nobody else wants to, or
    once they have waited ``LATE_PATIENCE_S`` there: from then on they are as urgent as any.
    """

    def __init__(self, counters: ServiceCounters, placement: Placement) -> None:
        self._counters = counters
        self._placement = placement
        self._lanes: dict[int, TenantLane] = {}
        self._late = TenantLane(counters)
        self._waiters: dict[int, Waiter] = {}
        self._popped: dict[int, Waiter] = {}
        self._cutoffs: list[tuple[float, int, Waiter]] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def waiters(self) -> Collection[Waiter]:
        """Everybody who waits, in no order."""
        return self._waiters.values()

    def push(self, seq: Sequence) -> None:
        """See ``WaitingLine.push``. One that was popped and could not start takes its old place again."""
        waiter = self._popped.pop(seq.seq_id, None)
        if waiter is None:
            waiter = self.new_waiter(seq)
            self._watch(waiter)
        self._waiters[seq.seq_id] = waiter
        waiter.home.push(waiter)

    def pop(self, urgency: float, now: float) -> Sequence | None:
        """See ``WaitingLine.pop``."""
        waiter = self.most_urgent(now)
        if waiter is None or waiter.due >= urgency:
            return None
        self._take(waiter)
        self._popped[waiter.seq.seq_id] = waiter
        return waiter.seq

    def discard(self, seq: Sequence) -> None:
        """See ``WaitingLine.discard``."""
        self._take(self._waiters[seq.seq_id])

    def forget(self, seq: Sequence) -> None:
        """A popped sequence has started; should it wait again, it is placed anew."""
        self._popped.pop(seq.seq_id, None)

    def most_urgent(self, now: float) -> Waiter | None:
        """Who would be popped next."""
        heads = [waiter for lane in self._lanes.values() if len(lane) and (waiter := lane.head()) is not None]
        late = self._late.head() if len(self._late) else None
        if late is not None and (not heads or late.due < now):
            heads.append(late)
        return min(heads, key=_key) if heads else None

    def take_overdue(self, now: float) -> list[tuple[Sequence, HeadraceError]]:
        """See ``WaitingLine.take_overdue``; moves those who may be late to their lane."""
        refused: list[tuple[Sequence, HeadraceError]] = []
        while self._cutoffs and self._cutoffs[0][0] < now:
            cutoff, _, waiter = heapq.heappop(self._cutoffs)
            if waiter.lane is None or (waiter.gave_way and cutoff > _GAVE_WAY):
                continue  # started, ended or placed anew since; or told already
            if waiter.seq.request.service_level.may_be_late:
                self._make_late(waiter, now)
            else:
                refused.append((waiter.seq, self._placement.too_late(waiter)))
        return refused

    def refuse(self, waiter: Waiter) -> None:
        """Let one that waits give way: it is too late for it from now on."""
        waiter.gave_way = True
        heapq.heappush(self._cutoffs, (_GAVE_WAY, waiter.seq.seq_id, waiter))

    def new_waiter(self, seq: Sequence) -> Waiter:
        """The place a sequence would get. Later sequences of a request will find their prompt in the cache."""
        num_cached = self._placement.num_cached_tokens(seq)
        num_uncached = seq.num_tokens - num_cached if seq.index == 0 else 1
        return Waiter(seq, self._placement.due(seq), num_cached, num_uncached, self._lane_of(seq))

    def _watch(self, waiter: Waiter) -> None:
        """Look out for its cutoff, if it has one."""
        cutoff = self._placement.cutoff(waiter.seq, waiter.num_cached)
        if cutoff == math.inf:
            return
        if len(self._cutoffs) > 2 * len(self._waiters) + 64:
            self._cutoffs = [item for item in self._cutoffs if item[2].lane is not None]
            heapq.heapify(self._cutoffs)
        heapq.heappush(self._cutoffs, (cutoff, waiter.seq.seq_id, waiter))

    def _lane_of(self, seq: Sequence) -> TenantLane:
        ttft_s = seq.request.service_level.ttft_s
        scale = math.frexp(ttft_s)[1] if ttft_s < math.inf else MAX_SCALE
        lane = self._lanes.get(scale)
        if lane is None:
            lane = self._lanes[scale] = TenantLane(self._counters)
        return lane

    def _take(self, waiter: Waiter) -> None:
        del self._waiters[waiter.seq.seq_id]
        waiter.home.remove(waiter)

    def _make_late(self, waiter: Waiter, now: float) -> None:
        waiter.home.remove(waiter)
        waiter.home = self._late
        waiter.place(now + LATE_PATIENCE_S)
        waiter.home.push(waiter)


def _key(waiter: Waiter) -> _Key:
    return waiter.key
