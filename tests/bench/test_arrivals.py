"""When requests arrive: rates, burstiness, ramps, traces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headrace.bench.arrivals import ConstantRate, RampedRate, RampStrategy, RandomArrivals, TraceArrivals
from headrace.bench.workload import Session, Turn
from headrace.core.errors import ConfigError

SESSION = Session(turns=[Turn(text="a", max_tokens=1)])


def gaps(arrivals: RandomArrivals, count: int) -> np.ndarray:
    times = [at for at, _ in arrivals.times([SESSION] * count)]
    assert times[0] == 0.0
    return np.diff(times)


def test_a_poisson_process_has_its_rate_and_spread() -> None:
    found = gaps(RandomArrivals(ConstantRate(20.0), 1.0, 4000, seed=3), 4000)
    assert found.mean() == pytest.approx(0.05, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(1.0, rel=0.06)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_changes_the_spread_and_not_the_rate(burstiness: float) -> None:
    found = gaps(RandomArrivals(ConstantRate(10.0), burstiness, 6000, seed=3), 6000)
    assert found.mean() == pytest.approx(0.1, rel=0.06)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.08)


def test_a_seed_decides_the_times() -> None:
    one = gaps(RandomArrivals(ConstantRate(1.0), 1.0, 9, seed=1), 9)
    assert (one == gaps(RandomArrivals(ConstantRate(1.0), 1.0, 9, seed=1), 9)).all()
    assert (one != gaps(RandomArrivals(ConstantRate(1.0), 1.0, 9, seed=2), 9)).any()


def test_an_infinite_rate_is_all_at_once() -> None:
    assert not gaps(RandomArrivals(ConstantRate(float("inf")), 1.0, 5, seed=0), 5).any()


def test_ramps_go_from_start_to_end() -> None:
    linear = RampedRate(2.0, 8.0, RampStrategy.LINEAR)
    exponential = RampedRate(2.0, 8.0, RampStrategy.EXPONENTIAL)
    assert [linear.at(progress) for progress in (0.0, 0.5, 1.0)] == [2.0, 5.0, 8.0]
    assert [exponential.at(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([2.0, 4.0, 8.0])
    even = gaps(RandomArrivals(linear, 1e12, 7, seed=0), 7)
    assert even == pytest.approx([1 / rate for rate in (2, 3, 4, 5, 6, 7)], rel=1e-4)


def test_a_trace_is_stretched_from_its_first_request() -> None:
    sessions = [Session(turns=SESSION.turns, arrival_s=at) for at in (10.0, 10.5, 14.0)]
    assert [at for at, _ in TraceArrivals(2.0).times(sessions)] == [0.0, 1.0, 8.0]
    with pytest.raises(ConfigError, match="no timestamps"):
        list(itertools.islice(TraceArrivals().times([SESSION]), 1))
