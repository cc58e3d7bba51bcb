"""A run in figures: goodput, attainment, stalls, fairness, timeline and lag, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.bench.client_lag import judge_lag
from headrace.bench.load_generator import RunTimes
from headrace.bench.record import Outcome, RequestRecord
from headrace.bench.recorder import RunRecorder
from headrace.bench.slo import Slo, SloMetric, meets_all, parse_slos
from headrace.bench.statistics import spread
from headrace.bench.summary import GAP_EDGES_S, RunSummary, summarize
from headrace.bench.timeline import MAX_BUCKETS, Timeline
from headrace.core.errors import ConfigError
from tests.bench.records import record


def summary_of(records: Sequence[RequestRecord], slos: Sequence[str] = (), duration_s: float = 10.0) -> RunSummary:
    parsed = parse_slos(slos)
    recorder = RunRecorder(parsed)
    for each in records:
        recorder.add(each)
    return summarize(recorder, RunTimes(duration_s, 1.0, (0.0,)), parsed)


def test_rates_count_what_succeeded_and_goodput_what_met_its_objectives() -> None:
    records = [
        record(0.0, (0.2, 0.3, 0.4)),
        record(0.0, (0.9, 1.0)),
        record(0.0, (0.1, 0.2), outcome=Outcome.INCOMPLETE),
        record(0.0, (0.1, 2.1)),
    ]
    run = summary_of(records, ["ttft:500", "stall:1000"])
    assert (run.num_offered, run.num_ok, run.num_failed) == (4, 3, 1)
    assert run.request_rate == pytest.approx(0.3)
    assert run.output_rate == pytest.approx(0.7)
    assert run.total_rate == pytest.approx(30.7)
    assert run.num_good == 1  # the second is late, the third failed, the fourth stalled
    assert run.goodput == pytest.approx(0.1)
    assert run.attainment == pytest.approx(0.25)
    assert [slo.attainment for slo in run.slos] == pytest.approx([0.5, 0.5])


def test_a_planned_abort_is_neither_a_failure_nor_offered_for_goodput() -> None:
    run = summary_of([record(), record(outcome=Outcome.ABORTED)], ["ttft:600"])
    assert (run.num_failed, run.num_aborted) == (0, 1)
    assert run.attainment == 1.0
    assert run.slos[0].attainment == 1.0


def test_latency_counts_from_the_intended_time() -> None:
    late = record(1.0, (4.0, 4.5))
    late.slot_s, late.sent_s = 3.0, 3.25
    assert late.ttft_s == 3.0
    assert late.queue_s == 2.0
    assert late.lag_s == 0.25
    run = summary_of([late])
    assert run.ttft.mean == 3.0
    assert run.queue.mean == 2.0
    assert run.concurrency == pytest.approx((4.5 - 3.25) / 10)


def test_time_per_token_is_left_out_where_there_is_no_second_token() -> None:
    run = summary_of([record(0.0, (0.5,)), record(0.0, (0.5, 0.9), num_output_tokens=5)])
    assert run.tpot.count == 1
    assert run.tpot.mean == pytest.approx(0.1)
    assert run.itl.count == 1
    assert run.itl.mean == pytest.approx(0.4)


def test_an_objective_is_met_at_its_limit_and_by_what_it_does_not_apply_to() -> None:
    tpot = Slo(SloMetric.TPOT, 0.1)
    assert tpot.is_met(record(0.0, (0.5,)))
    assert Slo(SloMetric.E2E, 0.75).is_met(record(0.0, (0.5, 0.75)))
    assert not Slo(SloMetric.E2E, 0.74).is_met(record(0.0, (0.5, 0.75)))
    assert not meets_all(record(outcome=Outcome.TIMEOUT), ())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ttft", "not NAME:MILLISECONDS"),
        ("tfft:3", "did you mean ttft"),
        ("ttft:-1", "not a number of milliseconds above 0"),
        ("ttft:nan", "not a number of milliseconds above 0"),
    ],
)
def test_a_wrong_objective_is_explained(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_slos([word])


def test_an_objective_is_given_once() -> None:
    with pytest.raises(ConfigError, match="names e2e 2 times"):
        parse_slos(["e2e:1", "e2el:2"])


def test_stalls_are_counted_by_their_length() -> None:
    run = summary_of([record(0.0, (0.1, 0.1005, 0.1505, 2.1505, 202.2))])
    counts = dict(zip(GAP_EDGES_S, run.gap_counts, strict=False))
    assert run.gap_counts[0] == 1  # half a millisecond
    assert run.gap_counts[-1] == 1  # 200 s
    assert sum(run.gap_counts) == 4
    assert counts[max(edge for edge in GAP_EDGES_S if edge <= 0.05)] == 1
    assert counts[max(edge for edge in GAP_EDGES_S if edge <= 2.0)] == 1
    assert run.worst_gap.maximum == pytest.approx(200.0495)


def test_fairness_compares_the_rates_that_groups_are_served_at() -> None:
    quick = record(0.0, (0.5, 1.0), num_output_tokens=10, group="a")
    slow = record(0.0, (0.5, 2.0), num_output_tokens=10, group="b")
    run = summary_of([quick, quick, slow])
    assert run.fairness == pytest.approx((10 + 5) ** 2 / (2 * (100 + 25)))
    assert [(group.group, group.num_requests) for group in run.groups] == [("a", 2), ("b", 1)]
    assert summary_of([quick]).fairness is None


def test_a_group_that_gets_nothing_is_seen_in_the_fairness() -> None:
    starved = record(0.0, (1.0,), group="b", outcome=Outcome.TIMEOUT)
    assert summary_of([record(group="a"), starved]).fairness == pytest.approx(0.5)


def test_turns_are_told_apart() -> None:
    later = record(0.0, (0.1, 0.2), turn=1)
    later.num_cached_tokens = 75
    run = summary_of([record(), later])
    assert [(turn.turn, turn.ttft.mean, turn.cached_share) for turn in run.turns] == [(0, 0.5, 0.0), (1, 0.1, 0.75)]


def test_the_timeline_spreads_tokens_over_chunks_and_sees_the_busiest_moment() -> None:
    timeline = Timeline()
    timeline.add(record(0.0, (0.2, 1.0), num_output_tokens=10))
    timeline.add(record(0.8, (1.1,)))
    timeline.add(record(1.0, (1.6,)))
    found = timeline.summary()
    assert found.tokens_per_s == [20.0, 0.0, 0.0, 0.0, 24.0, 0.0, 4.0]
    assert found.peak_in_flight == 2  # at 1.0 the first has ended when the third begins
    assert found.in_flight == [1, 1, 1, 2, 2, 1, 1]
    assert found.peak_tokens_per_s == pytest.approx((24 + 4) / 4)  # the best second holds 6 and 1 tokens


def test_a_long_run_has_wider_buckets_and_loses_no_token() -> None:
    timeline = Timeline()
    for second in range(0, MAX_BUCKETS, 40):
        timeline.add(record(float(second), (second + 0.5,), num_output_tokens=8))
    found = timeline.summary()
    assert len(found.tokens_per_s) <= MAX_BUCKETS
    assert found.bucket_s == 1.0
    assert sum(found.tokens_per_s) * found.bucket_s == pytest.approx(8 * 60)


def test_the_same_failure_is_told_once_with_its_count() -> None:
    failed = [record(outcome=Outcome.ERROR) for _ in range(3)]
    for each in failed:
        each.error = "HTTP 500: no"
    assert summary_of(failed).errors == {"HTTP 500: no": 3}


def test_lag_distorts_where_it_is_a_tenth_of_what_is_measured() -> None:
    ttft, gaps = spread([0.4, 0.4]), spread([0.2, 0.2])
    assert not judge_lag([0.0, 0.015], [0.0], (ttft, gaps), None).is_distorting
    distorting = judge_lag([0.0, 0.03], [0.0], (ttft, gaps), None)
    assert distorting.is_distorting
    assert "29.7 ms late at its 99th percentile, more than 20.0 ms" in distorting.remedy()
    assert not judge_lag([0.0, 0.03], [0.0], (ttft, gaps), 0.05).is_distorting


def test_lag_of_the_event_loop_counts_at_the_median_too() -> None:
    report = judge_lag([0.0], [0.009] * 9, (spread([0.06]),), None)
    assert "9.0 ms late at its median, more than 6.0 ms" in report.remedy()
