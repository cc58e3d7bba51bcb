"""What a simulation reports, on runs small enough to be worked out on paper; and its picture."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from headrace.core.service_level import ServiceLevel
from headrace.scheduler.build import BatchLimits
from headrace.scheduler.cost_model import StepCosts
from headrace.sim.picture import goodput_picture
from headrace.sim.report import SimulationReport, Spread, report_of
from headrace.sim.simulator import Replica, Simulator
from headrace.sim.step_time import LinearStepTime
from headrace.sim.trace import TraceRequest
from headrace.sim.workload import OfferedRequest
from tests.sim.workloads import random_case

SECOND_PER_STEP = StepCosts(fixed_s=1.0, num_free_tokens=1e6, token_s=1.0)


def offer(index: int, arrival_s: float, num_output: int, ttft_s: float = math.inf, tenant: str = "") -> OfferedRequest:
    trace = TraceRequest(arrival_s, 10, num_output, tenant=tenant)
    return OfferedRequest(index, arrival_s, 0, "c", ServiceLevel(ttft_s=ttft_s, tpot_s=1.5), trace)


def simulate(
    requests: list[OfferedRequest], max_num_seqs: int = 1, max_model_len: int = 40, request_s: float = 0.0
) -> SimulationReport:
    replica = Replica(
        policy="fcfs",
        step_time=LinearStepTime(SECOND_PER_STEP),
        known_costs=None,
        num_blocks=20,
        block_size=4,
        limits=BatchLimits(max_num_seqs, 64, max_model_len),
        request_s=request_s,
    )
    simulator = Simulator(requests, replica)
    simulator.run()
    return report_of(simulator, "fcfs", 1.0, 0)


def test_two_requests_one_after_the_other_in_steps_of_a_second() -> None:
    report = simulate([offer(0, 0.0, 3, ttft_s=1.0, tenant="a"), offer(1, 0.5, 2, ttft_s=3.0, tenant="b")])
    total = report.total
    assert (total.offered, total.admitted, total.served, total.output_tokens) == (2, 2, 2, 5)
    assert total.ttft_s.mean == pytest.approx((1.0 + 3.5) / 2)
    assert (total.tpot_s.p50, total.tokens_per_s.p99, total.stall_s.p99) == (1.0, 1.0, 1.0)
    assert total.goodput == 0.5, "the second one's first token comes half a second late"
    assert (report.simulated_s, report.num_steps, report.busy) == (5.0, 5, 1.0)
    assert [tenant.name for tenant in report.tenants] == ["a", "b"]
    assert report.jain_index == 1.0


def test_taking_a_request_in_takes_its_time_before_the_step_that_computes_it() -> None:
    report = simulate([offer(0, 0.0, 3), offer(1, 0.0, 2)], max_num_seqs=2, request_s=0.25)
    assert report.total.ttft_s.mean == pytest.approx(1.5)


def test_an_idle_hour_is_not_busy_and_what_is_too_long_is_missed_and_not_admitted() -> None:
    report = simulate([offer(0, 99.0, 1), offer(1, 99.0, 31)])
    assert report.busy == pytest.approx(0.01)
    assert (report.total.served, report.total.too_long, report.total.admitted) == (1, 1, 1)
    assert report.total.goodput == 0.5


def test_a_group_nobody_was_served_in_has_no_times() -> None:
    report = simulate([offer(0, 0.0, 31)])
    assert math.isnan(report.total.ttft_s.mean)
    assert b"NaN" not in msgspec.json.encode(report)


def test_every_offered_request_is_in_one_column_whatever_the_policy() -> None:
    for seed in range(60):
        case = random_case(seed)
        simulator = Simulator(case.requests, case.replica)
        simulator.run()
        report = report_of(simulator, case.replica.policy, 1.0, seed)
        for group in (report.total, *report.classes, *report.tenants):
            ended = group.served + group.rejected + group.expired + group.too_long + group.failed
            assert ended == group.offered
            assert group.failed == 0
            assert 0.0 <= group.goodput <= group.served / group.offered <= group.admitted / group.offered
        assert sum(group.offered for group in report.classes) == report.total.offered == len(case.requests)
        assert 1 / 3 <= report.jain_index <= 1.0 + 1e-12


def test_a_spread_is_mean_and_percentiles() -> None:
    spread = Spread.of([float(value) for value in range(101)])
    assert (spread.mean, spread.p50, spread.p90, spread.p99) == (50.0, 50.0, 90.0, 99.0)


def test_the_picture_is_svg_with_a_curve_for_each_policy_and_a_mark_for_each_load() -> None:
    report = simulate([offer(0, 0.0, 3)])
    reports = [
        msgspec.structs.replace(report, policy=policy, load=load)
        for policy in ("fcfs", "a<b")
        for load in (0.5, 1.0, 2.0)
    ]
    root = ElementTree.fromstring(goodput_picture(reports))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}polyline")) == 2
    assert len(root.findall(f"{name}path/{name}title")) == 6
    assert "prefers-color-scheme: dark" in (root.findtext(f"{name}style") or "")
    assert any(text.text == "a<b" for text in root.findall(f"{name}text"))
