"""The arithmetic of reports, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.statistics import Estimate, Spread, ValueStore, estimate, jain_index, percentile, spread


def test_a_percentile_lies_between_the_two_nearest_ranks() -> None:
    assert percentile([40.0, 10.0, 30.0, 20.0], 50) == 25.0
    assert percentile([10.0, 20.0, 30.0, 40.0], 90) == pytest.approx(37.0)  # rank 2.7: 30 + 0.7 * 10
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 99) == 0.0


def test_a_spread_has_the_mean_and_the_deviation_of_what_was_seen() -> None:
    found = spread([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert (found.count, found.mean, found.std, found.minimum, found.maximum) == (8, 5.0, 2.0, 2.0, 9.0)
    assert found.median == 4.5
    assert spread([]) == Spread()


def test_an_interval_is_students() -> None:
    assert estimate([10.0]) == Estimate(10.0, None)
    found = estimate([9.0, 10.0, 11.0])  # deviation 1, t of 2 degrees 4.303
    assert found.mean == 10.0
    assert found.half_width == pytest.approx(4.303 / math.sqrt(3))
    assert (found.low, found.high) == pytest.approx((10 - 2.4843, 10 + 2.4843), abs=1e-3)


def test_fairness_is_one_for_equals_and_a_share_for_a_monopoly() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([1.0, 2.0]) == pytest.approx(9 / 10)
    assert jain_index([0.0, 0.0]) == 1.0


def test_a_store_is_exact_while_it_is_small() -> None:
    store = ValueStore()
    store.extend([0.4, 0.1])
    store.extend([0.3, 0.2])
    assert store.is_exact
    assert store.spread().median == pytest.approx(0.25)
    assert store.histogram([0.0, 0.15, 0.35, 1.0]) == [1, 2, 1]


@given(st.lists(st.floats(1e-4, 100.0), min_size=60, max_size=400))
def test_a_full_store_keeps_percentiles_to_half_a_percent_and_the_rest_exactly(values: list[float]) -> None:
    store = ValueStore(max_exact=50)
    for start in range(0, len(values), 7):
        store.extend(values[start : start + 7])
    assert not store.is_exact
    found, exact = store.spread(), spread(values)
    assert found.count == exact.count
    assert found.mean == pytest.approx(exact.mean)
    assert (found.minimum, found.maximum) == (exact.minimum, exact.maximum)
    nearest = np.percentile(values, 90, method="lower")
    assert found.percentile(90) == pytest.approx(nearest, rel=0.0051)
    assert sum(store.histogram([0.0, 1.0, 10.0, 1e9])) == len(values)


def test_an_empty_store_has_an_empty_spread() -> None:
    assert ValueStore().spread() == Spread()
    assert ValueStore().histogram([0.0, 1.0]) == [0]
