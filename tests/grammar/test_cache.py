from __future__ import annotations

from concurrent.futures import Future

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.grammar.cache import GrammarCache


def regex(source: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, source)


def test_the_least_recently_used_goes_when_the_budget_is_spent() -> None:
    cache: GrammarCache[int] = GrammarCache(budget_bytes=300_000)
    for name in "abc":
        cache.put(regex(name), Future())
        cache.settle(regex(name), 100_000 - 1)
    assert (len(cache), cache.num_bytes) == (3, 300_000)
    assert cache.get(regex("a")) is not None
    cache.put(regex("d"), Future())
    assert cache.get(regex("b")) is None
    assert cache.get(regex("a")) is not None
    assert cache.num_bytes <= 300_000


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    cache: GrammarCache[int] = GrammarCache(budget_bytes=100_000)
    cache.put(regex("a"), Future())
    cache.settle(regex("a"), 200_000)
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_what_was_dropped_is_forgotten_and_dropping_it_again_is_nothing() -> None:
    cache: GrammarCache[int] = GrammarCache(budget_bytes=100_000)
    cache.put(regex("a"), Future())
    cache.drop(regex("a"))
    cache.drop(regex("a"))
    cache.settle(regex("a"), 10)
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_a_cache_that_may_not_grow_lets_the_oldest_go_for_the_newest() -> None:
    cache: GrammarCache[int] = GrammarCache(budget_bytes=1_000_000)
    for name in "ab":
        cache.put(regex(name), Future())
        cache.settle(regex(name), 100_000)
    cache.stop_growing()
    cache.put(regex("c"), Future())
    cache.settle(regex("c"), 100_000)
    assert [cache.get(regex(name)) is not None for name in "abc"] == [False, True, True]
    cache.resume_growing()
    cache.put(regex("d"), Future())
    assert len(cache) == 3
