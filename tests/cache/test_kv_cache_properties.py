"""The KV cache under many sequences and tiny pools, against memory that remembers what was written to it.

What a transformer writes at a position depends on every token up to it, so the model writes just that: the
namespace and the whole prefix. A sequence that ever finds anything else in its blocks would have generated
from someone else's prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.open_blocks import NO_CHUNKS, Chunks
from headrace.core.sequence import Sequence
from headrace.core.step import TransferKind
from tests.cache.sequences import make_sequence

Content = tuple[str, tuple[int, ...]]

cache_salts = st.sampled_from(["", "", "a"])
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class ManySequences(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_sequences = 0
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.uncounted: dict[int, tuple[int, int]] = {}
        self.num_announced_tokens: dict[int, int] = {}
        self.has_computed: set[int] = set()

    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.sampled_from([1, 2, 3, 4]),
        caching=st.sampled_from([True] * 4 + [False]),
    )
    def start(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=caching)
        self.caching = caching
        self.block_size = block_size
        self.memory: list[list[Content | None]] = [[None] * block_size for _ in range(num_blocks)]

    # -- the model ----------------------------------------------------------------------------------

    def cached_prefixes(self) -> set[Content]:
        """Every prefix in the cache, read off the nodes one by one, without the code that matches."""
        found: set[Content] = set()
        for node in self.kv._prefixes.tree.nodes():
            tokens = tuple(token_id for step in node.path() for token_id in step.token_ids)
            for back in range(len(node.block_ids)):
                found.add((node.namespace, tokens[: len(tokens) - back * self.block_size]))
        return found

    def num_matched_tokens(self, seq: Sequence, limit: int) -> int:
        cached = self.cached_prefixes()
        end = 0
        while end + self.block_size <= limit and content(seq, end + self.block_size) in cached:
            end += self.block_size
        return end

    def num_begun_tokens(self, seq: Sequence, start: int, limit: int, chunks: Chunks = NO_CHUNKS) -> int:
        """Most tokens after the first ``start`` that a cached block begins with, or that another has or computes."""
        wanted = seq.token_ids[start : min(limit, start + 2 * self.block_size)]
        end = start + self.block_size
        known = [tokens[:end] for salt, tokens in self.cached_prefixes() if salt == seq.request.cache_salt]
        known += [
            tuple(other.token_ids[: other.num_computed_tokens + chunks.get(other.seq_id, (other, 0))[1]])
            for other in self.live
            if other.request.cache_salt == seq.request.cache_salt
            and other.num_shared_blocks * self.block_size == start
            and (other.seq_id in self.has_computed or other.seq_id in chunks)
        ]
        shared = tuple(seq.token_ids[:start])
        most = max((num_common(tokens[start:], wanted) for tokens in known if tokens[:start] == shared), default=0)
        return most if self.caching else 0

    # -- what can happen ----------------------------------------------------------------------------

    @precondition(lambda self: len(self.waiting) < 4)
    @rule(prompt=prompts, cache_salt=cache_salts)
    def arrive(self, prompt: list[int], cache_salt: str) -> None:
        self.waiting.append(make_sequence(self.num_sequences, prompt, cache_salt))
        self.num_sequences += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), uses_cache=st.sampled_from([True, True, True, False]), num_tokens=st.integers(1, 9))
    def acquire(self, data: st.DataObject, uses_cache: bool, num_tokens: int) -> None:
        seq = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        if self.admit(seq, seq.num_tokens - 1 if uses_cache else 0, num_tokens, NO_CHUNKS):
            self.execute({seq.seq_id: (seq, min(num_tokens, seq.num_pending_tokens))})

    def admit(self, seq: Sequence, limit: int, num_tokens: int, chunks: Chunks) -> bool:
        """Give a sequence what there is and room for more, or let it wait again."""
        num_matched = self.num_matched_tokens(seq, limit)
        num_begun = self.num_begun_tokens(seq, num_matched, limit, chunks)
        self.kv.acquire(seq, limit, chunks)
        assert seq.num_computed_tokens <= num_matched + num_begun
        if len(self.live) < 8:  # no more running sequences are looked at
            assert seq.num_computed_tokens == num_matched + num_begun
        assert len(seq.block_table) == seq.num_shared_blocks == num_matched // self.block_size
        self.uncounted[seq.seq_id] = (limit, seq.num_computed_tokens)
        self.num_announced_tokens[seq.seq_id] = seq.num_tokens
        if not self.extend(seq, min(num_tokens, seq.num_pending_tokens)):
            self.release(seq)
            seq.num_computed_tokens = 0
            self.waiting.append(seq)
            return False
        self.live.append(seq)
        return True

    def copy_blocks(self) -> None:
        for kind, source, target in self.kv.take_transfers():
            assert kind is TransferKind.COPY
            self.memory[target] = list(self.memory[source])
        self.kv.settle(())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), is_executed=st.sampled_from([True] * 4 + [False]), has_victim=st.booleans())
    def step(self, data: st.DataObject, is_executed: bool, has_victim: bool) -> None:
        """A plan in which some go on and several start, and what they have in common is computed once."""
        chunks: dict[int, tuple[Sequence, int]] = {}
        for seq in [seq for seq in self.live if seq.num_pending_tokens and data.draw(st.booleans())]:
            num_tokens = min(data.draw(st.integers(1, 9)), seq.num_pending_tokens)
            if self.extend(seq, num_tokens):
                chunks[seq.seq_id] = (seq, num_tokens)
        for _ in range(data.draw(st.integers(1, len(self.waiting)))):
            seq = self.waiting.pop(0)
            num_tokens = data.draw(st.integers(1, 9))
            if self.admit(seq, seq.num_tokens - 1, num_tokens, chunks):
                chunks[seq.seq_id] = (seq, min(num_tokens, seq.num_pending_tokens))
        if has_victim and chunks:
            self.give_way(data.draw(st.sampled_from([seq for seq, _ in chunks.values()])), chunks)
        if is_executed:
            self.execute(chunks)
        else:
            self.kv.take_transfers()
            self.kv.abandon()
            for seq, _ in chunks.values():
                self.live.remove(seq)
                self.release(seq)

    def give_way(self, seq: Sequence, chunks: dict[int, tuple[Sequence, int]]) -> None:
        """Preempt a sequence that is in the plan, and all who would have begun with what it computes."""
        for other in self.kv.joints.followers(seq):
            if other.seq_id in chunks:
                self.give_way(other, chunks)
        del chunks[seq.seq_id]
        self.live.remove(seq)
        self.release(seq)
        seq.num_computed_tokens = 0
        self.waiting.append(seq)

    def execute(self, chunks: Chunks) -> None:
        joined = [(seq, part) for seq, _ in chunks.values() for part in self.kv.joints.of(seq)]
        self.copy_blocks()
        for seq, num_tokens in chunks.values():
            for position in range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens):
                self.set_slot(seq, position, content(seq, position + 1))
        for seq, part in joined:
            other, num_tokens = chunks[part.seq_id]
            assert other.num_computed_tokens <= part.start < part.end <= other.num_computed_tokens + num_tokens
            for position in range(part.start, part.end):
                self.set_slot(seq, position, content(other, position + 1))
        for seq, num_tokens in chunks.values():
            self.assert_reads_own_content(seq)
            self.advance(seq, num_tokens)

    @precondition(lambda self: any(seq.num_pending_tokens for seq in self.live))
    @rule(data=st.data(), num_tokens=st.integers(1, 9))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.live if seq.num_pending_tokens]))
        num_tokens = min(num_tokens, seq.num_pending_tokens)
        if self.extend(seq, num_tokens):
            self.execute({seq.seq_id: (seq, num_tokens)})

    def advance(self, seq: Sequence, num_tokens: int) -> None:
        seq.num_computed_tokens += num_tokens
        self.has_computed.add(seq.seq_id)
        num_shared = seq.num_shared_blocks
        self.kv.commit(seq)
        if seq.num_shared_blocks > num_shared:
            self.num_announced_tokens[seq.seq_id] = seq.num_tokens

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        before = seq.block_table.ids.tolist()
        num_missing = -(-(seq.num_computed_tokens + num_tokens) // self.block_size) - len(before)
        num_free, num_evictable = self.kv.num_free_blocks, self.kv.num_evictable_blocks
        can_extend = self.kv.can_extend(seq, num_tokens)
        assert can_extend == (num_missing <= num_free + num_evictable)
        assert self.kv.extend(seq, num_tokens) == can_extend
        after = seq.block_table.ids.tolist()
        assert after[: len(before)] == before
        assert len(after) == len(before) + (max(num_missing, 0) if can_extend else 0)
        if not can_extend:
            assert (self.kv.num_free_blocks, self.kv.num_evictable_blocks) == (num_free, num_evictable)
        elif num_missing > 0:
            query, hit = self.uncounted.pop(seq.seq_id, (0, 0))
            self.num_query_tokens += query
            self.num_hit_tokens += hit
        return can_extend

    def set_slot(self, seq: Sequence, position: int, found: Content) -> None:
        index, offset = divmod(position, self.block_size)
        assert index >= seq.num_shared_blocks, "a shared block is written to"
        self.memory[seq.block_table.ids[index]][offset] = found

    @precondition(lambda self: any(seq.num_pending_tokens == 0 for seq in self.live))
    @rule(data=st.data(), token_id=st.integers(0, 1))
    def sample_a_token(self, data: st.DataObject, token_id: int) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.live if seq.num_pending_tokens == 0]))
        seq.token_ids.append(token_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        seq = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.release(seq)
        seq.num_computed_tokens = 0
        self.waiting.append(seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.release(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    def release(self, seq: Sequence) -> None:
        self.uncounted.pop(seq.seq_id, None)
        self.has_computed.discard(seq.seq_id)
        for _ in range(2):  # the second has nothing to do
            self.kv.release(seq)
            assert (len(seq.block_table), seq.prefix_node, seq.num_shared_blocks) == (0, None, 0)

    @rule()
    def clear(self) -> None:
        num_freed = self.kv.num_evictable_blocks
        num_free = self.kv.num_free_blocks
        self.kv.clear_prefix_cache()
        assert self.kv.num_evictable_blocks == 0
        assert self.kv.num_free_blocks == num_free + num_freed

    # -- what must hold -----------------------------------------------------------------------------

    def assert_reads_own_content(self, seq: Sequence) -> None:
        for position in range(seq.num_computed_tokens):
            index, offset = divmod(position, self.block_size)
            assert self.memory[seq.block_table.ids[index]][offset] == content(seq, position + 1)

    @invariant()
    def every_block_has_one_owner(self) -> None:
        assert self.kv.check() == []
        owned = self.kv.num_free_blocks + self.kv.num_cached_blocks + self.kv.num_private_blocks
        assert owned == self.kv.num_blocks
        assert self.kv.num_private_blocks == sum(len(seq.block_table) - seq.num_shared_blocks for seq in self.live)

    @invariant()
    def every_sequence_finds_what_it_wrote(self) -> None:
        for seq in self.live:
            self.assert_reads_own_content(seq)

    @invariant()
    def all_full_computed_blocks_are_shared(self) -> None:
        for seq in self.live:
            assert seq.num_shared_blocks == (seq.num_computed_tokens // self.block_size if self.caching else 0)

    @invariant()
    def what_is_being_computed_is_known(self) -> None:
        for seq in self.waiting:
            limit = (seq.num_tokens - 1) // self.block_size * self.block_size
            start = self.num_matched_tokens(seq, limit)
            wanted = content(seq, start + self.block_size)
            in_flight = {content(other, start + self.block_size) for other in self.live if self.computes(other, start)}
            is_coming = self.caching and start < limit and wanted in in_flight
            if is_coming and start + self.block_size == limit and len(self.live) < 8:
                is_coming = 2 * self.num_begun_tokens(seq, start, seq.num_tokens - 1) < self.block_size
            if len(self.live) < 8:  # no more running sequences are looked at
                assert self.kv.is_being_computed(seq, seq.num_tokens - 1) == is_coming

    def computes(self, seq: Sequence, start: int) -> bool:
        """Whether the next block that a live sequence commits starts at ``start`` and was known when it last did."""
        is_known = self.num_announced_tokens[seq.seq_id] >= start + self.block_size
        return is_known and seq.num_shared_blocks * self.block_size == start

    @invariant()
    def look_ups_are_counted_once_and_only_when_they_led_on(self) -> None:
        if self.caching:
            assert self.kv.stats.query_tokens == self.num_query_tokens
            assert self.kv.stats.hit_tokens == self.num_hit_tokens

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        for seq in self.live:
            self.kv.release(seq)
        assert not self.kv._holders
        assert not self.kv._prefixes.in_flight
        assert not self.kv._prefixes.open_blocks
        assert not self.kv._lookups._uncounted
        assert self.kv.num_private_blocks == 0
        assert self.kv.num_available_blocks == self.kv.num_blocks
        self.kv.clear_prefix_cache()
        assert self.kv.num_free_blocks == self.kv.num_blocks
        assert self.kv.check() == []


def content(seq: Sequence, end: int) -> Content:
    """What the KV slot of the last of the first ``end`` tokens must hold."""
    return seq.request.cache_salt, tuple(seq.token_ids[:end])


def num_common(first: Iterable[int], second: Iterable[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


TestManySequences = ManySequences.TestCase
TestManySequences.settings = settings(max_examples=1300, stateful_step_count=30, deadline=None)
