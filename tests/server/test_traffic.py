"""The running line: only when there was work, with figures computable on paper."""

from __future__ import annotations

from headrace.core.client import StepStats
from headrace.server.traffic import Reading, Traffic, status_line


def stats(queries: int = 0, hits: int = 0) -> StepStats:
    return StepStats(
        num_running=2,
        num_waiting=1,
        num_blocks=100,
        num_free_blocks=60,
        num_cached_blocks=15,
        num_step_tokens=0,
        num_step_samples=0,
        step_s=0.0,
        prefix_query_tokens=queries,
        prefix_hit_tokens=hits,
        num_preemptions=0,
        num_evicted_blocks=0,
    )


def test_an_idle_period_has_no_line() -> None:
    same = Traffic(3, 10, 20, 0)
    assert status_line(Reading(0, same, stats()), Reading(10, same, stats())) is None


def test_a_waiting_request_has_a_line_even_without_tokens() -> None:
    same = Traffic(3, 10, 20, 1)
    assert status_line(Reading(0, same, None), Reading(10, same, None)) is not None


def test_rates_are_differences_over_the_period() -> None:
    before = Reading(100.0, Traffic(1, 50, 10, 0), stats(queries=1000, hits=0))
    after = Reading(110.0, Traffic(4, 250, 135, 2), stats(queries=1200, hits=50))
    assert status_line(before, after) == (
        "running 2, waiting 1, KV 25.0 % used, prefix hits 25.0 %, "
        "prompt 20.0 tokens/s, output 12.5 tokens/s, 3 requests"
    )


def test_a_new_engine_counts_from_zero() -> None:
    before = Reading(0.0, Traffic(), stats(queries=1000, hits=900))
    after = Reading(10.0, Traffic(1), stats(queries=100, hits=10))
    assert "prefix hits 10.0 %" in (status_line(before, after) or "")


def test_without_engine_figures_the_line_has_the_servers_own() -> None:
    line = status_line(Reading(0, Traffic(), None), Reading(10, Traffic(1, 10, 20), None))
    assert line == "prompt 1.0 tokens/s, output 2.0 tokens/s, 1 requests"
