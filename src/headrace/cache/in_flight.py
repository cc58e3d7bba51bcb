"""Which blocks will soon enter the prefix cache because a running sequence is computing them.

Knows positions in the tree only as opaque handles. What to make of a coming block (wait for it, or compute
it a second time) is the scheduler's decision.
"""

from __future__ import annotations

from collections import Counter

from headrace.core.sequence import PrefixNode

_Block = tuple[PrefixNode, bytes]


class InFlightBlocks:
    """The next uncommitted block of each running sequence that knows all tokens of it.

    That is, of sequences with a prompt to compute: a block that decoding fills token by token is not in flight.
    A block is named by the node under which it will be inserted and its own packed tokens: by just what a
    waiting sequence that could use it finds at the end of its match. Two sequences may be computing the same
    block, hence the counts. Every operation is O(1).
    """

    def __init__(self) -> None:
        self._block_of_sequence: dict[int, _Block] = {}
        self._num_computing: Counter[_Block] = Counter()

    def __len__(self) -> int:
        return len(self._block_of_sequence)

    def __contains__(self, block: _Block) -> bool:
        return block in self._num_computing

    def add(self, seq_id: int, node: PrefixNode, tokens: bytes) -> None:
        """Say what a sequence with no block in flight computes next."""
        assert seq_id not in self._block_of_sequence
        block = (node, tokens)
        self._block_of_sequence[seq_id] = block
        self._num_computing[block] += 1

    def discard(self, seq_id: int) -> None:
        """Forget a sequence's block, if it has one."""
        block = self._block_of_sequence.pop(seq_id, None)
        if block is None:
            return
        self._num_computing[block] -= 1
        if self._num_computing[block] == 0:
            del self._num_computing[block]
