"""Who has had how much of the machine, in weighted tokens, and how evenly it was shared.

Owns a virtual counter per tenant, after Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024):
serving whoever has the lowest counter keeps two tenants that both have work waiting within a bound of each
other. It does not know who waits for what, nor what is served next.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan

OUTPUT_TOKEN_COST: Final = 2.0
"""A generated token counts as two computed prompt tokens: it takes a place in the batch for a whole step."""

CACHED_TOKEN_COST: Final = 0.1
"""A prompt token found in the cache costs no computing, but memory."""

MAX_QUANTUM: Final = 2048.0
"""Most weighted tokens by which a tenant may be ahead of the last and still go first for its cached prefix."""

MAX_REMEMBERED_TENANTS: Final = 4096
_WINDOW_S: Final = 60.0
_REFRESH_S: Final = 1.0


def admission_cost(seq: Sequence) -> float:
    """What starting a sequence charges its tenant, before its weight: the prompt, cached tokens at a discount."""
    num_cached = seq.num_computed_tokens
    return seq.num_prompt_tokens - num_cached + CACHED_TOKEN_COST * num_cached


class ServiceCounters:
    """Weighted service of every tenant. Hears the scheduler; one thread only.

    A tenant is active while it has a sequence waiting or running. One that comes back from idleness is lifted to
    the lowest active counter, so that nobody saves up a claim to the machine. Counters never fall.
    ``MAX_REMEMBERED_TENANTS`` idle ones are remembered, so that leaving for a moment wipes no slate clean.

    ``quantum`` is the deficit of Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (2025): among tenants
    that would be no further apart after it, a cached prefix may decide. It is never more than the costliest prompt
    there was, so that two tenants with work waiting stay within the bound of the paper above, twice the larger of
    one prompt and two times the tokens of a full batch.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._num_sequences: Counter[str] = Counter()
        self._idle: OrderedDict[str, float] = OrderedDict()
        self._lowest: list[tuple[float, str]] = []
        self._floor = 0.0
        self.quantum = 0.0
        self._recent = RecentService()

    def value(self, tenant: str) -> float:
        """Weighted tokens an active tenant has had."""
        return self._values[tenant]

    def value_on_entry(self, tenant: str) -> float:
        """What ``value`` would be if the tenant had a sequence more."""
        value = self._values.get(tenant)
        return max(self._idle.get(tenant, 0.0), self.lowest) if value is None else value

    @property
    def lowest(self) -> float:
        """The lowest counter of an active tenant, or where it was last when there is none."""
        heap = self._lowest
        while heap:
            value, tenant = heap[0]
            current = self._values.get(tenant)
            if current == value:
                self._floor = max(self._floor, value)
                break
            heapq.heappop(heap)
            if current is not None:
                heapq.heappush(heap, (current, tenant))
        return self._floor

    @property
    def jain_index(self) -> float:
        """Jain's index of the weighted service of the last minute: 1 is even, 1/n all to one of n tenants."""
        return self._recent.jain_index

    def enter(self, seq: Sequence) -> None:
        """A sequence begins to wait for the first time."""
        tenant = seq.request.tenant
        self._num_sequences[tenant] += 1
        if tenant not in self._values:
            self._values[tenant] = self.value_on_entry(tenant)
            self._idle.pop(tenant, None)
            heapq.heappush(self._lowest, (self._values[tenant], tenant))

    def leave(self, seq: Sequence) -> None:
        """A sequence that entered has ended."""
        tenant = seq.request.tenant
        self._num_sequences[tenant] -= 1
        if self._num_sequences[tenant] > 0:
            return
        del self._num_sequences[tenant]
        self._floor = self.lowest
        self._idle[tenant] = self._values.pop(tenant)
        if len(self._idle) > MAX_REMEMBERED_TENANTS:
            self._idle.popitem(last=False)

    def charge_admission(self, seq: Sequence) -> None:
        """A sequence starts for the first time."""
        cost = admission_cost(seq) / seq.request.weight
        self.quantum = min(max(self.quantum, cost), MAX_QUANTUM)
        self._charge(seq.request.tenant, cost)

    def charge_step(self, plan: StepPlan, running: Mapping[int, Sequence]) -> None:
        """Charge the tokens a step generated. Costs O(sequences in it)."""
        costs: dict[str, float] = {}
        for item in plan.scheduled:
            if item.sample is not None:
                request = running[item.seq_id].request
                costs[request.tenant] = costs.get(request.tenant, 0.0) + OUTPUT_TOKEN_COST / request.weight
        for tenant, cost in costs.items():
            self._charge(tenant, cost)

    def _charge(self, tenant: str, cost: float) -> None:
        self._values[tenant] += cost
        self._recent.add(tenant, cost)

    def refresh(self, now: float) -> None:
        """Bring ``jain_index`` up to date; does nothing more than once a second."""
        self._recent.refresh(now)


class RecentService:
    """Service per tenant with old service fading away over a minute, and how even it is."""

    def __init__(self) -> None:
        self._service: dict[str, float] = {}
        self._refreshed_at = 0.0
        self.jain_index = 1.0

    def add(self, tenant: str, cost: float) -> None:
        self._service[tenant] = self._service.get(tenant, 0.0) + cost

    def refresh(self, now: float) -> None:
        elapsed = now - self._refreshed_at
        if 0 <= elapsed < _REFRESH_S:
            return
        self._refreshed_at = now
        self.jain_index = jain_index(self._service.values())
        kept = 0.5 ** (elapsed / _WINDOW_S) if elapsed > 0 else 1.0
        self._service = {tenant: cost * kept for tenant, cost in self._service.items() if cost * kept >= 1.0}


def jain_index(shares: Iterable[float]) -> float:
    """``(sum x)^2 / (n sum x^2)``: 1 for equal shares, 1/n if one has all; 1 for nobody. Jain et al., 1984."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0
