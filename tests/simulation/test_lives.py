"""A slice of the lives that ``make simulations`` runs ten thousand of."""

from __future__ import annotations

from tests.simulation.lives import run_lives

NUM_LIVES = 40


def test_nobody_loses_a_token_whatever_goes_wrong() -> None:
    report = run_lives(range(NUM_LIVES))
    assert report.failures == []
    assert report.totals["requests"] > 10 * NUM_LIVES
    assert report.totals["deaths"] > NUM_LIVES / 2
    assert report.totals["RequestQuarantined"] > 0


def test_a_seed_is_one_life() -> None:
    assert run_lives([3]).totals == run_lives([3]).totals
