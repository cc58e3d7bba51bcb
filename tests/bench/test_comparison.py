"""Ratios, their intervals and verdicts, worked out by hand."""

from __future__ import annotations

import math

import pytest

from headrace.bench.comparison import Direction, Figure, Verdict, compare, log_ratio


def higher(*values: float) -> Figure:
    return Figure(list(values), "tok/s", Direction.HIGHER)


def lower(*values: float) -> Figure:
    return Figure(list(values), "ms", Direction.LOWER)


def verdict_of(a: Figure, b: Figure) -> Verdict:
    return compare(("A", "B"), {"x": a}, {"x": b}).ratios[0].verdict


def test_a_ratio_is_of_geometric_means_with_welchs_interval() -> None:
    center, half_width = log_ratio([1.0, math.e], [math.e**2, math.e**3])
    assert center == pytest.approx(2.0)
    # variances 1/2 over 2 runs each: standard error sqrt(1/2), and 2 degrees of freedom: t 4.303
    assert half_width == pytest.approx(4.303 * math.sqrt(0.5))


def test_a_single_run_has_a_ratio_and_no_interval() -> None:
    assert log_ratio([2.0], [4.0, 4.0]) == (pytest.approx(math.log(2)), None)
    ratio = compare(("A", "B"), {"x": lower(10.0)}, {"x": lower(20.0)}).ratios[0]
    assert (ratio.ratio, ratio.low, ratio.verdict) == (pytest.approx(2.0), None, Verdict.WORSE)


def test_which_way_is_better_decides_the_verdict() -> None:
    assert verdict_of(higher(10, 10.1, 9.9), higher(20, 20.1, 19.9)) is Verdict.BETTER
    assert verdict_of(lower(10, 10.1, 9.9), lower(20, 20.1, 19.9)) is Verdict.WORSE


def test_a_change_within_the_threshold_is_none() -> None:
    assert verdict_of(lower(100, 100, 100), lower(104, 104, 104)) is Verdict.SAME
    assert verdict_of(lower(100, 100, 100), lower(106, 106, 106)) is Verdict.WORSE


def test_a_change_that_may_be_chance_fails_nothing() -> None:
    comparison = compare(("A", "B"), {"x": lower(5, 10, 20)}, {"x": lower(8, 16, 30)})
    assert comparison.ratios[0].verdict is Verdict.UNSURE
    assert not comparison.is_worse
    assert comparison.verdict == "unsure: x"


def test_only_what_both_have_is_compared() -> None:
    comparison = compare(
        ("A", "B"), {"x": lower(1.0), "y": lower(1.0), "z": lower(0.0)}, {"x": lower(1.0), "z": lower(1.0)}
    )
    assert [ratio.name for ratio in comparison.ratios] == ["x"]
    assert comparison.verdict == "the same within 5 %"
