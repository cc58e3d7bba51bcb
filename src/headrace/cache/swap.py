"""What sequences take back from the tiers instead of computing it again.

Owns, per sequence, the private blocks that were stored when it was preempted, and the blocks it will get back once it
has room: found by name, or stored before. A sequence that is admitted plans its return, and either makes it or calls
it off. Knows the tiers' slots; the device's blocks only as targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.cache.tiers import BlockKey, BlockTiers, block_key


@dataclass(frozen=True, slots=True)
class _Stored:
    """Host slots with a preempted sequence's blocks ``[start, start + len(slots))``, good for its first tokens."""

    start: int
    slots: list[int]
    num_computed_tokens: int


@dataclass(slots=True)
class _Return:
    """What will be copied to entries ``[start, ...)`` of a sequence's block table: named content, then stored."""

    start: int
    keys: list[BlockKey] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    stored: _Stored | None = None


class SwapSpace:
    """The returns of preempted and of new sequences, by sequence id."""

    def __init__(self, tiers: BlockTiers, block_size: int) -> None:
        self._tiers = tiers
        self._block_size = block_size
        self._stored: dict[int, _Stored] = {}
        self._unsettled: set[int] = set()
        self._returns: dict[int, _Return] = {}
        self._num_fetched: dict[int, int] = {}

    @property
    def held_slots(self) -> list[int]:
        return [slot for stored in self._stored.values() for slot in stored.slots]

    def store(self, seq_id: int, start: int, block_ids: Sequence[int], num_computed_tokens: int) -> bool:
        """Keep a sequence's blocks from ``start`` on in the host tier; False if there is no room for all of them."""
        slots = self._tiers.hold(block_ids)
        if slots is None:
            return False
        self._stored[seq_id] = _Stored(start, slots, num_computed_tokens)
        self._unsettled.add(seq_id)
        return True

    def plan(self, seq_id: int, start: int, before: BlockKey, packed_blocks: Iterator[bytes], limit: int) -> int:
        """Decide what a sequence gets back after its first ``start`` blocks; how many tokens are good then.

        ``packed_blocks`` are the tokens of the blocks that may be found by name, ``before`` is the name of what comes
        before them; of stored tokens no more than ``limit`` are taken back. Everything planned stays until
        ``bring_back`` or ``call_off``. Stored blocks that do not continue what there is are dropped.
        """
        planned = _Return(start)
        key = before
        for packed in packed_blocks:
            key = block_key(key, packed)
            if self._tiers.host.find(key) is None:
                break
            planned.keys.append(key)
            planned.slots.append(self._tiers.host.pin(key))
        num_tokens = (start + len(planned.keys)) * self._block_size
        stored = self._stored.get(seq_id)
        if stored is not None and stored.start == start + len(planned.keys) and stored.num_computed_tokens <= limit:
            planned.stored = stored
            num_tokens = stored.num_computed_tokens
        elif stored is not None:
            self._drop_stored(seq_id)
        self._returns[seq_id] = planned
        return num_tokens

    def num_found(self, before: BlockKey, packed_blocks: Iterator[bytes]) -> int:
        """How many blocks in a row after the prefix named ``before`` are in the host tier."""
        num_found = 0
        key = before
        for packed in packed_blocks:
            key = block_key(key, packed)
            if self._tiers.host.find(key) is None:
                break
            num_found += 1
        return num_found

    def bring_back(self, seq_id: int, block_ids: NDArray[np.int32]) -> None:
        """Order the copies that were planned, into a sequence's block table, which has room for them now."""
        planned = self._returns.pop(seq_id, None)
        if planned is None:
            return
        stored_slots = [] if planned.stored is None else planned.stored.slots
        slots = planned.slots + stored_slots
        self._tiers.restore(slots, block_ids[planned.start : planned.start + len(slots)].tolist())
        for key in planned.keys:
            self._tiers.host.unpin(key)
        if planned.stored is not None:
            self._drop_stored(seq_id)
        self._num_fetched.pop(seq_id, None)

    def call_off(self, seq_id: int) -> None:
        """Forget what was planned; the sequence may plan anew."""
        planned = self._returns.pop(seq_id, None)
        if planned is not None:
            for key in planned.keys:
                self._tiers.host.unpin(key)

    def drop(self, seq_id: int) -> None:
        """Forget a sequence that is gone for good."""
        self.call_off(seq_id)
        if seq_id in self._stored:
            self._drop_stored(seq_id)
        self._num_fetched.pop(seq_id, None)

    def fetch(self, seq_id: int, before: BlockKey, packed_blocks: Iterator[bytes]) -> bool:
        """Begin to bring from disk what a waiting sequence could use next; whether something is on its way.

        A sequence has at most half of the host tier fetched for it, so that it never waits for blocks that its own
        later ones push out again.
        """
        is_coming = False
        key = before
        for packed in packed_blocks:
            key = block_key(key, packed)
            if self._tiers.is_arriving(key):
                is_coming = True
            elif self._tiers.host.find(key) is None:
                if not self._may_fetch(seq_id) or not self._tiers.fetch(key):
                    break
                self._num_fetched[seq_id] = self._num_fetched.get(seq_id, 0) + 1
                is_coming = True
        return is_coming

    def settle(self) -> None:
        """The plan's transfers were done."""
        self._unsettled.clear()

    def abandon(self) -> None:
        """The plan failed: what it was to store is not there, and those sequences compute it again."""
        for seq_id in self._unsettled & self._stored.keys():
            self._drop_stored(seq_id)
        self._unsettled.clear()

    def clear(self) -> None:
        self._stored.clear()
        self._returns.clear()
        self._unsettled.clear()
        self._num_fetched.clear()

    def _may_fetch(self, seq_id: int) -> bool:
        return self._num_fetched.get(seq_id, 0) < max(1, self._tiers.host.num_slots // 2)

    def _drop_stored(self, seq_id: int) -> None:
        self._tiers.let_go(self._stored.pop(seq_id).slots)
