"""The search for the knee, on curves whose knee is known."""

from __future__ import annotations

import asyncio

import pytest

from headrace.bench.capacity import SearchOptions, find_knee


def search(true_knee: float, options: SearchOptions) -> tuple[float | None, bool, list[float]]:
    """Rates up to ``true_knee`` hold; what was found, and the rates that were tried."""
    tried: list[float] = []

    async def is_held(rate: float) -> bool:
        tried.append(rate)
        return rate <= true_knee

    knee, is_beyond = asyncio.run(find_knee(is_held, options))
    return knee, is_beyond, tried


@pytest.mark.parametrize("true_knee", [0.3, 1.0, 7.7, 100.0])
def test_the_knee_is_found_to_the_tolerance(true_knee: float) -> None:
    knee, is_beyond, tried = search(true_knee, SearchOptions(tolerance=0.05))
    assert knee is not None
    assert knee <= true_knee <= knee * 1.05
    assert not is_beyond
    assert len(tried) < 16
    assert len(set(tried)) == len(tried)


def test_rates_double_until_they_break_and_are_then_bisected() -> None:
    _, _, tried = search(3.0, SearchOptions(min_rate=1.0, tolerance=0.3))
    assert tried == pytest.approx([1.0, 2.0, 4.0, 8**0.5, (8**0.5 * 4) ** 0.5])


def test_a_server_that_is_too_slow_for_the_lowest_rate_has_no_knee() -> None:
    assert search(0.1, SearchOptions()) == (None, False, [0.25])


def test_a_server_that_holds_the_highest_rate_is_beyond_the_search() -> None:
    assert search(1e9, SearchOptions(min_rate=4.0, max_rate=10.0)) == (10.0, True, [4.0, 8.0, 10.0])
