"""Tokens that one plan computes for several sequences: computed once, written to the blocks of all of them."""

from __future__ import annotations

from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.tiers import BlockTiers
from headrace.core.sequence import Sequence
from headrace.core.step import BlockTransfer, JoinedTokens, TransferKind
from tests.cache.sequences import compute, make_sequence


class Plan:
    """A plan being made: who starts in it with how many tokens."""

    def __init__(self, kv: KVCacheManager) -> None:
        self.kv = kv
        self.chunks: dict[int, tuple[Sequence, int]] = {}

    def start(self, seq: Sequence, num_tokens: int | None = None) -> Sequence:
        """Admit a sequence with what there is, and give it all that is left or ``num_tokens`` of it."""
        self.kv.acquire(seq, seq.num_tokens - 1, self.chunks)
        return self.go_on(seq, num_tokens)

    def go_on(self, seq: Sequence, num_tokens: int | None = None) -> Sequence:
        num_tokens = num_tokens or seq.num_pending_tokens
        assert self.kv.extend(seq, num_tokens)
        self.chunks[seq.seq_id] = (seq, num_tokens)
        return seq

    def execute(self) -> None:
        self.kv.take_transfers()
        self.kv.settle(())
        for seq, num_tokens in self.chunks.values():
            seq.num_computed_tokens += num_tokens
            self.kv.commit(seq)


def caching(num_blocks: int = 16, tiers: BlockTiers | None = None) -> KVCacheManager:
    return KVCacheManager(num_blocks, 8, enable_prefix_caching=True, tiers=tiers)


def test_what_arrives_together_is_computed_once() -> None:
    kv = caching()
    plan = Plan(kv)
    plan.start(make_sequence(0, [1, 2, 3, 4, 5, 60]))
    second = plan.start(make_sequence(1, [1, 2, 3, 4, 5, 70, 71]))
    assert second.num_computed_tokens == 5
    assert kv.joints.of(second) == (JoinedTokens(0, 0, 5),)
    assert kv.take_transfers() == ()
    assert kv.stats.hit_tokens == 5


def test_what_was_joined_can_be_joined_in_turn() -> None:
    kv = caching()
    plan = Plan(kv)
    plan.start(make_sequence(0, [1, 2, 3, 60]))
    plan.start(make_sequence(1, [1, 2, 3, 4, 5, 70]))
    third = plan.start(make_sequence(2, [1, 2, 3, 4, 5, 80]))
    assert kv.joints.of(third) == (JoinedTokens(0, 0, 3), JoinedTokens(1, 3, 5))
    fourth = plan.start(make_sequence(3, [1, 2, 90, 91]))
    assert kv.joints.of(fourth) == (JoinedTokens(0, 0, 2),)


def test_what_is_there_already_is_copied_and_the_rest_is_joined() -> None:
    kv = caching()
    first = make_sequence(0, [1, 2, 3, 4, 5, 6])
    kv.acquire(first, 5)
    compute(kv, first, 3)
    plan = Plan(kv)
    plan.go_on(first)
    second = plan.start(make_sequence(1, [1, 2, 3, 4, 5, 70]))
    assert (second.num_computed_tokens, kv.joints.of(second)) == (5, (JoinedTokens(0, 3, 5),))
    third = plan.start(make_sequence(2, [1, 2, 3, 4, 5, 70, 80]))
    assert (third.num_computed_tokens, kv.joints.of(third)) == (6, (JoinedTokens(0, 3, 5), JoinedTokens(1, 5, 6)))
    first_block, second_block, third_block = (int(seq.block_table.ids[0]) for seq in (first, second, third))
    assert kv.take_transfers() == (
        BlockTransfer(TransferKind.COPY, first_block, second_block),
        BlockTransfer(TransferKind.COPY, second_block, third_block),
    )


def test_only_what_the_plan_computes_can_be_joined() -> None:
    kv = caching()
    plan = Plan(kv)
    plan.start(make_sequence(0, [1, 2, 3, 4, 5, 6]), num_tokens=2)
    second = plan.start(make_sequence(1, [1, 2, 3, 4, 5, 70]))
    assert kv.joints.of(second) == (JoinedTokens(0, 0, 2),)
    plan.execute()
    assert kv.joints.of(second) == ()
    third = Plan(kv).start(make_sequence(2, [1, 2, 3, 4, 90]))
    assert (third.num_computed_tokens, kv.joints.of(third)) == (4, ())


def test_a_last_token_and_what_must_be_reported_are_computed_all_the_same() -> None:
    kv = caching()
    plan = Plan(kv)
    plan.start(make_sequence(0, [1, 2, 3, 4]))
    second = plan.start(make_sequence(1, [1, 2, 3, 4]))
    assert (second.num_computed_tokens, kv.joints.of(second)) == (3, (JoinedTokens(0, 0, 3),))


def test_a_block_that_is_half_computed_with_the_plan_is_not_waited_for() -> None:
    kv = caching()
    plan = Plan(kv)
    plan.start(make_sequence(0, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    seq = make_sequence(1, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert kv.is_being_computed(seq, 8)
    assert not kv.is_being_computed(seq, 8, plan.chunks)
    plan.start(seq)
    assert seq.num_computed_tokens == 8
    plan.execute()
    assert seq.block_table.ids[0] == plan.chunks[0][0].block_table.ids[0], "and then it is shared as if it had waited"
    assert kv.check() == []


def test_nothing_is_joined_across_salts() -> None:
    kv = caching()
    plan = Plan(kv)
    plan.start(make_sequence(0, [1, 2, 3, 4], "mine"))
    second = plan.start(make_sequence(1, [1, 2, 3, 5], "yours"))
    assert (second.num_computed_tokens, kv.joints.of(second)) == (0, ())


def test_who_cannot_start_without_a_chunk_is_known_until_the_plan_is_done() -> None:
    kv = caching()
    plan = Plan(kv)
    first = plan.start(make_sequence(0, [1, 2, 3, 60]))
    second = plan.start(make_sequence(1, [1, 2, 3, 4, 70]))
    third = plan.start(make_sequence(2, [1, 2, 3, 4, 80]))
    assert (kv.joints.followers(first), kv.joints.followers(second), kv.joints.followers(third)) == (
        [second, third],
        [third],
        [],
    )
    kv.release(third)
    assert kv.joints.followers(second) == []
    kv.abandon()
    assert kv.joints.followers(first) == []
    for seq in (first, second):
        kv.release(seq)
    assert kv.num_cached_blocks == 0, "nothing of a plan that was not executed is kept"
    assert kv.check() == []


def test_what_is_still_to_be_joined_is_not_swapped_out() -> None:
    kv = caching(tiers=BlockTiers(num_host_blocks=8))
    plan = Plan(kv)
    first = plan.start(make_sequence(0, [1, 2, 3, 4, 5, 60]))
    second = plan.start(make_sequence(1, [1, 2, 3, 4, 5, 70]))
    assert not kv.swap_out(second)
    plan.execute()
    assert kv.swap_out(second)
    kv.release(second)
    kv.release(first)
    kv.take_transfers()
    kv.settle(())
    assert kv.check() == []
