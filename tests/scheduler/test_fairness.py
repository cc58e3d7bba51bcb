"""Shares of the machine: counters on paper, and two busy tenants that stay within the bound of each other."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.sequence import Sequence
from headrace.scheduler.fairness import MAX_REMEMBERED_TENANTS, RecentService, ServiceCounters, jain_index
from tests.fakes import make_request
from tests.scheduler.harness import Harness


def seq_of(tenant: str, num_tokens: int = 10, num_cached: int = 0, weight: float = 1.0) -> Sequence:
    seq = Sequence(0, make_request([1] * num_tokens, tenant=tenant, weight=weight), 0, frozenset())
    seq.num_computed_tokens = num_cached
    return seq


def test_a_prompt_is_charged_by_what_of_it_is_computed_over_the_weight():
    counters = ServiceCounters()
    seq = seq_of("a", 100, 40, weight=2.0)
    counters.enter(seq)
    counters.charge_admission(seq)
    assert counters.value("a") == pytest.approx((60 + 0.1 * 40) / 2)


def test_a_newcomer_begins_at_the_lowest_counter_and_saves_nothing_up():
    counters = ServiceCounters()
    for tenant, num_tokens in (("a", 100), ("b", 300)):
        counters.enter(seq_of(tenant))
        counters.charge_admission(seq_of(tenant, num_tokens))
    counters.enter(seq_of("c"))
    assert counters.value("c") == 100.0


def test_who_leaves_for_a_moment_finds_the_old_counter():
    counters = ServiceCounters()
    busy, other = seq_of("busy"), seq_of("other")
    counters.enter(busy)
    counters.charge_admission(seq_of("busy", 500))
    counters.leave(busy)
    counters.enter(other)
    counters.enter(busy)
    assert counters.value("busy") == 500.0


def test_after_everybody_left_a_newcomer_is_not_behind_those_who_return():
    counters = ServiceCounters()
    old = seq_of("old")
    counters.enter(old)
    counters.charge_admission(seq_of("old", 500))
    counters.leave(old)
    counters.enter(seq_of("new"))
    counters.enter(old)
    assert counters.value("new") == counters.value("old") == 500.0


def test_only_so_many_tenants_are_remembered():
    counters = ServiceCounters()
    for number in range(MAX_REMEMBERED_TENANTS + 10):
        seq = seq_of(f"t{number}")
        counters.enter(seq)
        counters.charge_admission(seq)
        counters.leave(seq)
    assert len(counters._idle) == MAX_REMEMBERED_TENANTS


@pytest.mark.parametrize(
    ("shares", "index"), [([], 1.0), ([0.0], 1.0), ([5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([1, 3], 0.8)]
)
def test_jains_index_on_paper(shares, index):
    assert jain_index(shares) == pytest.approx(index)


def test_old_service_fades_and_a_silent_tenant_disappears():
    recent = RecentService()
    recent.add("a", 100.0)
    recent.add("b", 100.0)
    recent.refresh(1.0)
    assert recent.jain_index == 1.0
    recent.add("a", 10_000.0)
    recent.refresh(500.0)
    assert recent.jain_index < 0.6
    recent.refresh(1000.0)
    recent.refresh(1001.0)
    assert recent.jain_index == 1.0


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Prompt and output tokens of one tenant's requests."""
    return draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 14)), min_size=5, max_size=12))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=workloads(),
    second=workloads(),
    weights=st.sampled_from([(1.0, 1.0), (3.0, 1.0), (1.0, 0.5)]),
    max_num_seqs=st.integers(1, 4),
    head_start=st.integers(0, 6),
)
def test_two_tenants_with_work_waiting_stay_within_the_bound(first, second, weights, max_num_seqs, head_start):
    house = Harness(num_blocks=72, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + 8, policy="slo")
    counters = house.scheduler.meters.counters

    def add_all(tenant: str, workload: list[tuple[int, int]], weight: float) -> None:
        for number, (num_tokens, max_tokens) in enumerate(workload):
            first_token = (number + (25 if tenant == "b" else 0)) % 50
            prompt = [first_token, *[(number * 7 + i) % 50 for i in range(num_tokens - 1)]]
            house.add(make_request(prompt, max_tokens=max_tokens, ignore_eos=True, tenant=tenant, weight=weight))

    add_all("a", first, weights[0])
    for _ in range(head_start):
        house.step()
    add_all("b", second, weights[1])
    largest_prompt = max(num_tokens for num_tokens, _ in first + second) / min(weights)
    full_batch = max_num_seqs * max(sum(request) for request in first + second) / min(weights)
    bound = 2 * max(largest_prompt, 2 * full_batch)
    gaps = []
    while all(any(s.status.value == "waiting" for s in house.sequences if s.request.tenant == t) for t in "ab"):
        gaps.append(counters.value("a") - counters.value("b"))
        house.step()
    assert max(gaps, default=0.0) - min(gaps, default=0.0) <= bound


def test_a_flood_does_not_delay_the_neighbour_who_comes_after_it():
    house = Harness(num_blocks=512, max_num_seqs=2, max_num_batched_tokens=16, policy="slo")
    for number in range(40):
        house.add(make_request([number, 1, 2, 3], max_tokens=4, ignore_eos=True, tenant="flood", arrival_time=0.0))
    for _ in range(3):
        house.step()
    late = house.add(make_request([49, 48, 47], max_tokens=2, ignore_eos=True, tenant="late", arrival_time=0.03))
    for _ in range(8):
        house.step()
    assert late.is_finished
