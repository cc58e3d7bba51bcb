from __future__ import annotations

import pytest

from headrace.cache.kv_cache import KVCacheManager
from tests.cache.sequences import admit, compute, leave_cached, make_sequence
from tests.marks import needs_asserts


def caching(num_blocks: int, block_size: int) -> KVCacheManager:
    return KVCacheManager(num_blocks, block_size, enable_prefix_caching=True)


def test_a_sequence_takes_as_many_blocks_as_its_tokens_need() -> None:
    kv = caching(8, 4)
    seq = make_sequence(0, list(range(9)))
    admit(kv, seq)
    assert kv.extend(seq, 4)
    assert seq.block_table.ids.tolist() == [0]
    assert kv.extend(seq, 9)
    assert seq.block_table.ids.tolist() == [0, 1, 2]
    assert (kv.num_free_blocks, kv.num_private_blocks, kv.num_cached_blocks) == (5, 3, 0)


def test_full_blocks_become_the_caches_and_a_partial_one_stays_private() -> None:
    kv = caching(8, 4)
    seq = make_sequence(0, list(range(9)))
    admit(kv, seq)
    compute(kv, seq, 9)
    assert seq.num_shared_blocks == 2
    assert (kv.num_cached_blocks, kv.num_private_blocks, kv.num_evictable_blocks) == (2, 1, 0)


def test_what_a_released_sequence_computed_is_found_by_the_next() -> None:
    kv = caching(8, 4)
    leave_cached(kv, make_sequence(0, list(range(9))))
    assert (kv.num_free_blocks, kv.num_evictable_blocks) == (5, 3)
    seq = make_sequence(1, [*range(8), 50, 51])
    admit(kv, seq)
    assert seq.num_computed_tokens == 8
    assert seq.block_table.ids.tolist() == [0, 1]


def test_at_least_one_token_is_left_to_compute() -> None:
    kv = caching(8, 4)
    leave_cached(kv, make_sequence(0, list(range(8))))
    seq = make_sequence(1, list(range(8)))
    admit(kv, seq)
    assert seq.num_computed_tokens == 7


def test_a_limit_of_zero_takes_nothing_from_the_cache_and_still_feeds_it() -> None:
    kv = caching(8, 4)
    leave_cached(kv, make_sequence(0, list(range(4))))
    seq = make_sequence(1, list(range(8)))
    kv.acquire(seq, 0)
    assert (seq.num_computed_tokens, len(seq.block_table)) == (0, 0)
    compute(kv, seq, 8)
    assert kv.num_cached_blocks == 2


def test_of_two_sequences_that_computed_the_same_the_later_gives_its_blocks_back() -> None:
    kv = caching(8, 2)
    first, second = make_sequence(0, [1, 2, 3, 4, 5]), make_sequence(1, [1, 2, 3, 4, 6])
    for seq in (first, second):
        admit(kv, seq)
        assert kv.extend(seq, 5)
    assert kv.num_free_blocks == 2
    for seq in (first, second):
        seq.num_computed_tokens = 5
        kv.commit(seq)
    assert second.block_table.ids.tolist()[:2] == first.block_table.ids.tolist()[:2]
    assert second.block_table.ids.tolist()[2] != first.block_table.ids.tolist()[2]
    assert (kv.num_free_blocks, kv.num_cached_blocks, kv.num_private_blocks) == (4, 2, 2)
    assert kv.check() == []


def test_cached_blocks_are_evicted_when_a_sequence_needs_the_room() -> None:
    kv = caching(4, 2)
    leave_cached(kv, make_sequence(0, [1, 2, 3, 4, 5, 6]))
    seq = make_sequence(1, [7, 8, 9, 9])
    admit(kv, seq)
    assert kv.extend(seq, 4)
    assert kv.stats.evicted_blocks == 1
    assert kv.num_cached_blocks == 2


def test_a_sequence_that_does_not_fit_now_gets_nothing_and_nothing_is_evicted() -> None:
    kv = caching(4, 1)
    leave_cached(kv, make_sequence(0, [1, 2]))
    seq = make_sequence(1, [1, 2, 3, 4, 5])
    admit(kv, seq)
    assert not kv.can_extend(seq, 3)
    assert not kv.extend(seq, 3)
    assert (kv.num_free_blocks, kv.num_cached_blocks, len(seq.block_table)) == (2, 2, 2)
    assert kv.extend(seq, 2)


def test_a_sequence_cannot_evict_the_prefix_it_stands_on() -> None:
    kv = caching(2, 1)
    leave_cached(kv, make_sequence(0, [1]))
    seq = make_sequence(1, [1, 2, 3])
    admit(kv, seq)
    assert kv.num_evictable_blocks == 0
    assert not kv.extend(seq, 2)
    assert kv.extend(seq, 1)


def test_salted_requests_never_see_each_others_blocks() -> None:
    kv = caching(8, 1)
    leave_cached(kv, make_sequence(0, [1, 2, 3], cache_salt="alice"))
    for seq_id, (cache_salt, num_found) in enumerate({"alice": 2, "bob": 0, "": 0}.items(), start=1):
        seq = make_sequence(seq_id, [1, 2, 3], cache_salt)
        admit(kv, seq)
        assert seq.num_computed_tokens == num_found
        kv.release(seq)


def test_without_prefix_caching_every_block_stays_private_and_comes_back() -> None:
    kv = KVCacheManager(4, 2, enable_prefix_caching=False)
    seq = make_sequence(0, [1, 2, 3, 4, 5])
    admit(kv, seq)
    compute(kv, seq, 5)
    assert (kv.num_cached_blocks, kv.num_private_blocks, seq.num_shared_blocks) == (0, 3, 0)
    kv.release(seq)
    assert kv.num_free_blocks == 4
    assert not kv.is_being_computed(make_sequence(1, [1, 2, 3]), 2)
    assert kv.check() == []


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    kv = caching(8, 2)
    seq = make_sequence(0, [1, 2, 3, 4, 5, 6, 7])
    admit(kv, seq)
    compute(kv, seq, 5)
    kv.release(seq)
    seq.num_computed_tokens = 0
    admit(kv, seq)
    assert seq.num_computed_tokens == 5


def test_releasing_twice_or_without_acquiring_does_nothing() -> None:
    kv = caching(4, 2)
    seq = make_sequence(0, [1, 2, 3])
    kv.release(seq)
    admit(kv, seq)
    compute(kv, seq, 3)
    kv.release(seq)
    kv.release(seq)
    assert kv.check() == []
    assert kv.num_available_blocks == 4


@needs_asserts
def test_acquiring_twice_is_noticed() -> None:
    kv = caching(4, 2)
    seq = make_sequence(0, [1, 2, 3])
    admit(kv, seq)
    with pytest.raises(AssertionError, match="acquired before"):
        admit(kv, seq)


@needs_asserts
def test_extending_a_sequence_that_was_not_acquired_is_noticed() -> None:
    with pytest.raises(AssertionError, match="was not acquired"):
        caching(4, 2).extend(make_sequence(0, [1, 2, 3]), 3)


@pytest.mark.parametrize(("num_tokens", "fits"), [(0, True), (15, True), (16, True), (17, False)])
def test_a_sequence_fits_if_the_whole_pool_holds_it(num_tokens: int, fits: bool) -> None:
    assert caching(4, 4).fits(num_tokens) is fits


def test_clearing_keeps_what_running_sequences_stand_on() -> None:
    kv = caching(8, 1)
    leave_cached(kv, make_sequence(0, [1, 2, 3]))
    seq = make_sequence(1, [1, 9])
    admit(kv, seq)
    kv.clear_prefix_cache()
    assert kv.num_cached_blocks == 1
    kv.release(seq)
    kv.clear_prefix_cache()
    assert kv.num_free_blocks == 8


def test_hits_are_counted_in_tokens_of_those_looked_up() -> None:
    kv = caching(8, 2)
    leave_cached(kv, make_sequence(0, [1, 2, 3, 4, 5]))
    leave_cached(kv, make_sequence(1, [1, 2, 3, 4, 6]))
    assert (kv.stats.query_tokens, kv.stats.hit_tokens) == (8, 4)


def test_a_sequence_that_is_looked_up_again_and_again_for_want_of_room_is_counted_once() -> None:
    kv = caching(4, 1)
    leave_cached(kv, make_sequence(0, [1, 2]))
    before = (kv.stats.query_tokens, kv.stats.hit_tokens)
    blocker, seq = make_sequence(1, [9, 9]), make_sequence(2, [1, 2, 3])
    admit(kv, blocker)
    assert kv.extend(blocker, 2)
    for _ in range(5):
        admit(kv, seq)
        assert not kv.extend(seq, 1)
        kv.release(seq)
    kv.release(blocker)
    admit(kv, seq)
    assert kv.extend(seq, 1)
    assert (kv.stats.query_tokens - before[0], kv.stats.hit_tokens - before[1]) == (1 + 2, 0 + 2)


# -- blocks in flight -------------------------------------------------------------------------------


def test_a_waiting_sequence_is_told_that_its_next_block_is_being_computed() -> None:
    kv = caching(16, 2)
    running, waiting = make_sequence(0, [1, 2, 3, 4, 5]), make_sequence(1, [1, 2, 3, 4, 6])
    assert not kv.is_being_computed(waiting, 4)
    admit(kv, running)
    assert kv.is_being_computed(waiting, 4)
    assert not kv.is_being_computed(waiting, 1)  # it could not take the block over
    compute(kv, running, 2)
    assert kv.is_being_computed(waiting, 4)  # now for the second block
    compute(kv, running, 2)
    assert not kv.is_being_computed(waiting, 4)
    admit(kv, waiting)
    assert waiting.num_computed_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "cache_salt"),
    [
        ([1, 3, 9], ""),  # another first block
        ([1, 2], ""),  # the block is the last of the prompt, of which a token must be computed anyway
        ([1], ""),
        ([1, 2, 9], "salt"),
    ],
)
def test_a_waiting_sequence_is_not_held_back_for_a_block_it_cannot_use(prompt: list[int], cache_salt: str) -> None:
    kv = caching(16, 2)
    admit(kv, make_sequence(0, [1, 2, 3, 4, 5]))
    assert not kv.is_being_computed(make_sequence(1, prompt, cache_salt), len(prompt) - 1)


def test_a_sequence_that_parts_from_the_running_one_earlier_is_not_held_back() -> None:
    kv = caching(16, 2)
    running = make_sequence(0, [1, 2, 3, 4, 5, 6, 7])
    admit(kv, running)
    compute(kv, running, 4)
    assert kv.is_being_computed(make_sequence(1, [1, 2, 3, 4, 5, 6, 9]), 6)
    assert not kv.is_being_computed(make_sequence(2, [1, 2, 5, 6, 9]), 4)


def test_nobody_waits_for_a_block_of_a_sequence_that_left() -> None:
    kv = caching(16, 2)
    first, second = make_sequence(0, [1, 2, 3]), make_sequence(1, [1, 2, 4])
    waiting = make_sequence(2, [1, 2, 5])
    admit(kv, first)
    admit(kv, second)
    kv.release(first)
    assert kv.is_being_computed(waiting, 4)  # by the second still
    kv.release(second)
    assert not kv.is_being_computed(waiting, 4)


def test_long_prompts_are_matched_to_their_end() -> None:
    kv = caching(5_000, 1)
    prompt = list(range(4_000))
    leave_cached(kv, make_sequence(0, prompt))
    for seq_id, num_common in enumerate([63, 64, 65, 511, 512, 513, 3_999], start=1):
        seq = make_sequence(seq_id, [*prompt[:num_common], 9_999, 9_999])
        admit(kv, seq)
        assert seq.num_computed_tokens == num_common
        kv.release(seq)
