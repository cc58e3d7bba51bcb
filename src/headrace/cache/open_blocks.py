"""Blocks that are not full, and what of them a sequence can have copied instead of computing it.

Sequences share whole blocks. Of the block in which a sequence departs from what is known it needs the beginning, and
goes on writing where that ends, so it gets a copy in a block of its own: copying a block takes about as long as a tenth
of one token. What can be copied from is a cached block, full or left behind by a sequence that ended, or the block that
a running sequence is filling: tokens that were computed never change. Tokens that the plan being made computes for
another sequence it can join: they are computed once and written to the blocks of both. It joins no more than the rest
of one block and the next: what is longer takes no blocks of its own and is waited for.

Owns who is filling a block after which prefix, and which copies and joints are planned. The work itself is part of a
plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from headrace.cache.joints import Joints
from headrace.cache.packed_tokens import TOKEN_BYTES, num_common_tokens, pack_tokens
from headrace.cache.radix_node import RadixNode
from headrace.cache.radix_tree import RadixTree
from headrace.core.sequence import PrefixNode, Sequence
from headrace.core.step import JoinedTokens

_MAX_CACHED = 16
_MAX_RUNNING = 8
"""Most cached blocks, and most of those being filled, that are compared, the latest first."""


Chunks = Mapping[int, tuple[Sequence, int]]
"""How many tokens of which sequences the plan being made computes, by ``seq_id``."""

NO_CHUNKS: Chunks = {}


class _Source(NamedTuple):
    """Where ``num_tokens`` that are wanted can be had from.

    The first ``num_copied`` stand in a block, which ``node`` holds if it is cached; the others are ``joined``.
    """

    block_id: int
    num_tokens: int
    num_copied: int
    node: RadixNode | None = None
    joined: tuple[JoinedTokens, ...] = ()


_NONE = _Source(-1, 0, 0)


class OpenBlocks:
    """The open block of each running sequence, and what is planned of copies and joints. One thread only."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._min_kept = max(1, block_size // 4)  # for fewer no block of a sequence that ended is kept
        self._filling: dict[PrefixNode, dict[int, Sequence]] = {}  # by the prefix before the block
        self._nodes: dict[int, PrefixNode] = {}
        self._num_given: dict[int, int] = {}  # tokens a sequence got without computing them
        self._sources: dict[int, _Source] = {}  # of those that start in the plan being made
        self._copies: dict[int, int] = {}
        self.joints = Joints()

    def __len__(self) -> int:
        return sum(len(held) for held in (self._nodes, self._num_given, self._sources, self._copies)) + len(self.joints)

    def enter(self, seq: Sequence) -> None:
        """A sequence has its prefix locked and fills the block after it from now on."""
        node = seq.prefix_node
        assert node is not None
        self._filling.setdefault(node, {})[seq.seq_id] = seq
        self._nodes[seq.seq_id] = node

    def move(self, seq: Sequence) -> None:
        """Its prefix has grown."""
        if seq.prefix_node is not self._nodes[seq.seq_id]:
            self._forget_place(seq)
            self.enter(seq)

    def leave(self, seq: Sequence) -> None:
        """It shares nothing any more. No effect on a sequence that is not here."""
        if seq.seq_id in self._nodes:
            self._forget_place(seq)
        self._num_given.pop(seq.seq_id, None)
        self._sources.pop(seq.seq_id, None)
        self._copies.pop(seq.seq_id, None)
        self.joints.drop(seq)

    def plan(self, seq: Sequence, tree: RadixTree, limit: int, chunks: Chunks) -> int:
        """Choose what a sequence that was just admitted has copied and what it joins; how many tokens that saves.

        Of its first ``limit`` tokens. ``num_computed_tokens`` says what it was given so far; only where that is just
        what it shares there is more for it here.
        """
        self._num_given[seq.seq_id] = seq.num_computed_tokens
        start = seq.num_shared_blocks * self._block_size
        if seq.num_computed_tokens != start or limit <= start:
            return 0
        node = seq.prefix_node
        assert isinstance(node, RadixNode)
        source = self._best_source(seq, node, start, limit, chunks)
        if source.num_tokens == 0:
            return 0
        if source.node is not None:
            tree.touch(source.node)
        self._sources[seq.seq_id] = source
        self.joints.add(seq, source.joined)
        if source.num_copied:
            self._copies[seq.seq_id] = source.block_id
        self._num_given[seq.seq_id] = start + source.num_tokens
        return source.num_tokens

    def num_to_be_had(self, seq: Sequence, node: RadixNode, num_blocks: int, limit: int, chunks: Chunks) -> int:
        """How many tokens ``plan`` would save a waiting sequence after ``num_blocks`` blocks, which end at ``node``."""
        return self._best_source(seq, node, num_blocks * self._block_size, limit, chunks).num_tokens

    def take_copy(self, seq: Sequence) -> int | None:
        """The block to copy, now that the sequence has one of its own."""
        return self._copies.pop(seq.seq_id, None)

    def settle(self) -> None:
        """The plan was executed."""
        self._sources.clear()
        self.joints.take_all()

    def abandon(self) -> list[Sequence]:
        """The plan will never be executed; whose ``num_computed_tokens`` are fewer now, as they joined nobody."""
        self._sources.clear()
        joined = self.joints.take_all()
        for seq, parts in joined:
            seq.num_computed_tokens = self._num_given[seq.seq_id] = parts[0].start
        return [seq for seq, _ in joined]

    def leave_block(self, seq: Sequence, tree: RadixTree) -> list[int]:
        """Keep what a sequence computed of its open block in the tree; the blocks of its own that are nobody's now.

        Nothing is kept before it has computed something: until then a copy into the block may be planned and not done.
        """
        own_ids = seq.private_block_ids
        start = seq.num_shared_blocks * self._block_size
        is_worth_it = self._min_kept <= seq.num_computed_tokens - start < self._block_size
        if not (is_worth_it and self._has_computed(seq)):
            return own_ids
        node = seq.prefix_node
        assert isinstance(node, RadixNode)
        packed = pack_tokens(seq.token_ids[start : seq.num_computed_tokens])
        known = self._best_cached(node, packed)
        if packed in node.children or known.num_tokens * TOKEN_BYTES == len(packed):
            return own_ids
        replaced: list[int] = []
        if known.node is not None and len(known.node.packed_tokens) == known.num_tokens * TOKEN_BYTES:
            replaced = tree.drop_leaf(known.node)  # it begins this one
        tree.add_open_leaf(node, packed, own_ids[0])
        return replaced + own_ids[1:]

    def _best_source(self, seq: Sequence, node: RadixNode, start: int, limit: int, chunks: Chunks) -> _Source:
        """Where most of the tokens in ``[start, limit)`` can be had of those after ``node``."""
        wanted = pack_tokens(seq.token_ids[start : min(limit, start + 2 * self._block_size)])
        running = self._best_running(seq, node, start, wanted, chunks)
        return max(self._best_cached(node, wanted), running, key=_num_tokens)

    def _best_cached(self, node: RadixNode, wanted: bytes) -> _Source:
        """The cached block after ``node`` that begins most like ``wanted``."""
        best = _NONE
        for child in islice(reversed(node.children.values()), _MAX_CACHED):
            num_tokens = num_common_tokens(child.packed_tokens[: self._block_size * TOKEN_BYTES], wanted)
            if num_tokens > best.num_tokens:
                best = _Source(child.block_ids[0], num_tokens, num_tokens, child)
        return best

    def _best_running(self, seq: Sequence, node: RadixNode, start: int, wanted: bytes, chunks: Chunks) -> _Source:
        """The block that another sequence is filling after ``node`` that begins most like ``wanted``."""
        best = _NONE
        filling = self._filling.get(node, {})
        for other in islice(reversed(filling.values()), _MAX_RUNNING):
            if other is seq:
                continue
            known = self._known(other, start, chunks)
            if known.num_tokens <= best.num_tokens:
                continue
            tokens = pack_tokens(other.token_ids[start : start + min(known.num_tokens, 2 * self._block_size)])
            if (num_tokens := num_common_tokens(tokens, wanted)) > best.num_tokens:
                best = _first_of(known, start, num_tokens)
        return best

    def _known(self, other: Sequence, start: int, chunks: Chunks) -> _Source:
        """Where the tokens are that ``other`` has from ``start`` on once the plan being made is executed."""
        end = other.num_computed_tokens
        if self._has_computed(other):
            num_copied, joined = end - start, _NONE.joined
        else:
            source = self._sources.get(other.seq_id, _NONE)
            num_copied, joined = source.num_copied, source.joined
            if start + source.num_tokens != end:
                return _NONE  # it was given them in another way
        if other.seq_id in chunks:
            end += chunks[other.seq_id][1]
            joined = (*joined, JoinedTokens(other.seq_id, other.num_computed_tokens, end))
        if end == start:
            return _NONE
        return _Source(int(other.block_table.ids[other.num_shared_blocks]), end - start, num_copied, None, joined)

    def _has_computed(self, seq: Sequence) -> bool:
        return seq.num_computed_tokens > self._num_given.get(seq.seq_id, seq.num_computed_tokens)

    def _forget_place(self, seq: Sequence) -> None:
        node = self._nodes.pop(seq.seq_id)
        del self._filling[node][seq.seq_id]
        if not self._filling[node]:
            del self._filling[node]


def _first_of(source: _Source, start: int, num_tokens: int) -> _Source:
    """Where the first ``num_tokens`` of those from ``start`` on are."""
    end = start + num_tokens
    parts = (JoinedTokens(part.seq_id, part.start, min(part.end, end)) for part in source.joined)
    joined = tuple(part for part in parts if part.start < part.end)
    return _Source(source.block_id, num_tokens, min(source.num_copied, num_tokens), None, joined)


def _num_tokens(source: _Source) -> int:
    return source.num_tokens
