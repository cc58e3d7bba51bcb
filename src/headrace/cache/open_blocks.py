"""Blocks that are not full, and what of them a sequence can have copied instead of computing it.

Sequences share whole blocks. Of the block in which a sequence departs from what is known it needs the beginning, and
goes on writing where that ends, so it gets a copy in a block of its own: copying a block takes about as long as a tenth
of one token. What can be copied from is a cached block, full or left behind by a sequence that ended, or the block that
a running sequence is filling: tokens that were computed never change.

Owns who is filling a block after which prefix, and which copies are planned. The copying itself is part of a plan.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from headrace.cache.packed_tokens import TOKEN_BYTES, num_common_tokens, pack_tokens
from headrace.cache.radix_node import RadixNode
from headrace.cache.radix_tree import RadixTree
from headrace.core.sequence import PrefixNode, Sequence

_MAX_CACHED = 16
_MAX_RUNNING = 8
"""Most cached blocks, and most of those being filled, that are compared, the latest first."""


class _Source(NamedTuple):
    """A block that begins with tokens that are wanted, and how many; the node that holds it if it is cached."""

    block_id: int
    num_tokens: int
    node: RadixNode | None = None


_NONE = _Source(-1, 0)


class OpenBlocks:
    """The open block of each running sequence, and the copies planned. One thread only."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._min_tokens = max(1, block_size // 4)  # fewer are computed as fast as a block is copied and kept
        self._filling: dict[PrefixNode, dict[int, Sequence]] = {}  # by the prefix before the block
        self._nodes: dict[int, PrefixNode] = {}
        self._num_given: dict[int, int] = {}  # tokens a sequence got without computing them
        self._sources: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._nodes) + len(self._num_given) + len(self._sources)

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

    def plan(self, seq: Sequence, tree: RadixTree, limit: int) -> int:
        """Choose what a sequence that was just admitted has copied, of its first ``limit`` tokens; how many that saves.

        ``num_computed_tokens`` says what it was given so far; only where that is just what it shares there is a copy.
        """
        self._num_given[seq.seq_id] = seq.num_computed_tokens
        start = seq.num_shared_blocks * self._block_size
        if seq.num_computed_tokens != start or limit - start < self._min_tokens:
            return 0
        node = seq.prefix_node
        assert isinstance(node, RadixNode)
        source = self._best_source(seq, node, start, limit)
        if source is None:
            return 0
        if source.node is not None:
            tree.touch(source.node)
        self._sources[seq.seq_id] = source.block_id
        self._num_given[seq.seq_id] = start + source.num_tokens
        return source.num_tokens

    def num_copyable(self, seq: Sequence, node: RadixNode, num_blocks: int, limit: int) -> int:
        """How many tokens a waiting sequence could have copied after ``num_blocks`` blocks, which end at ``node``."""
        source = self._best_source(seq, node, num_blocks * self._block_size, limit)
        return 0 if source is None else source.num_tokens

    def take_source(self, seq: Sequence) -> int | None:
        """The block to copy, now that the sequence has one of its own."""
        return self._sources.pop(seq.seq_id, None)

    def leave_block(self, seq: Sequence, tree: RadixTree) -> list[int]:
        """Keep what a sequence computed of its open block in the tree; the blocks of its own that are nobody's now.

        Nothing is kept before it has computed something: until then a copy into the block may be planned and not done.
        """
        own_ids = seq.private_block_ids
        start = seq.num_shared_blocks * self._block_size
        is_worth_it = self._min_tokens <= seq.num_computed_tokens - start < self._block_size
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

    def _best_source(self, seq: Sequence, node: RadixNode, start: int, limit: int) -> _Source | None:
        """The block with most of the tokens in ``[start, limit)`` of those after ``node``, if it has enough of them."""
        wanted = pack_tokens(seq.token_ids[start : min(limit, start + self._block_size)])
        source = max(self._best_cached(node, wanted), self._best_running(seq, node, start, wanted), key=_num_tokens)
        return source if source.num_tokens >= self._min_tokens else None

    def _best_cached(self, node: RadixNode, wanted: bytes) -> _Source:
        """The cached block after ``node`` that begins most like ``wanted``."""
        best = _NONE
        for child in islice(reversed(node.children.values()), _MAX_CACHED):
            num_tokens = num_common_tokens(child.packed_tokens[: self._block_size * TOKEN_BYTES], wanted)
            if num_tokens > best.num_tokens:
                best = _Source(child.block_ids[0], num_tokens, child)
        return best

    def _best_running(self, seq: Sequence, node: RadixNode, start: int, wanted: bytes) -> _Source:
        """The block that another sequence is filling after ``node`` that begins most like ``wanted``."""
        best = _NONE
        filling = self._filling.get(node, {})
        for other in islice(reversed(filling.values()), _MAX_RUNNING):
            if other is not seq and self._has_computed(other):
                computed = pack_tokens(other.token_ids[start : other.num_computed_tokens])
                if (num_tokens := num_common_tokens(computed, wanted)) > best.num_tokens:
                    best = _Source(int(other.block_table.ids[other.num_shared_blocks]), num_tokens)
        return best

    def _has_computed(self, seq: Sequence) -> bool:
        return seq.num_computed_tokens > self._num_given.get(seq.seq_id, seq.num_computed_tokens)

    def _forget_place(self, seq: Sequence) -> None:
        node = self._nodes.pop(seq.seq_id)
        del self._filling[node][seq.seq_id]
        if not self._filling[node]:
            del self._filling[node]


def _num_tokens(source: _Source) -> int:
    return source.num_tokens
