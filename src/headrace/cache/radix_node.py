"""What the radix tree is made of, and how a place in it is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.cache.packed_tokens import unpack_tokens
from headrace.core.sequence import PrefixNode


class RadixNode(PrefixNode):
    """Some whole blocks in a row, and what was seen to follow them; or a last block that is not full.

    ``packed_tokens`` are the tokens of ``block_ids``. ``children`` is keyed by the packed tokens of each
    child's first block, so that any two children differ within it, or one of them is not full and begins the other.
    A root has no parent and no blocks and stands for the empty prefix of its ``namespace``.

    ``lock_count`` is the number of holders whose prefix ends at this very node plus the number of children that
    are locked: a locked node keeps its parent locked, hence all its ancestors.
    """

    __slots__ = ("block_ids", "children", "lock_count", "namespace", "packed_tokens", "parent")

    def __init__(
        self,
        namespace: str,
        parent: RadixNode | None,
        packed_tokens: bytes | bytearray = b"",
        block_ids: Sequence[int] = (),
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.packed_tokens = bytearray(packed_tokens)
        self.block_ids = list(block_ids)
        self.children: dict[bytes, RadixNode] = {}
        self.lock_count = 0

    @property
    def token_ids(self) -> list[int]:
        """The tokens one by one, for people and tests."""
        return unpack_tokens(self.packed_tokens)

    def num_common_blocks(self, packed_tokens: bytes, start: int, block_bytes: int) -> int:
        """How many of the node's blocks equal the tokens from byte ``start``, when not all do but the first does.

        Halves the range in doubt each time, so that the bytes compared add up to the node's size at most.
        """
        low, high = 1, len(self.block_ids)  # [0, low) are equal; [0, high) are not
        while high - low > 1:
            middle = (low + high) // 2
            ours = self.packed_tokens[low * block_bytes : middle * block_bytes]
            if packed_tokens.startswith(ours, start + low * block_bytes):
                low = middle
            else:
                high = middle
        return low

    def path(self) -> list[RadixNode]:
        """From the root to this node, both included."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        nodes.reverse()
        return nodes

    def __repr__(self) -> str:
        return f"RadixNode({self.namespace!r}, blocks={self.block_ids}, locks={self.lock_count})"


class PrefixMatch(NamedTuple):
    """How much of some tokens is in the tree; true until the tree changes.

    ``block_ids`` hold the matched tokens. The match ends in ``node``, after ``num_node_blocks`` of its blocks.
    """

    node: RadixNode
    num_node_blocks: int
    block_ids: list[int]

    @property
    def ends_with_node(self) -> bool:
        return self.num_node_blocks == len(self.node.block_ids)
