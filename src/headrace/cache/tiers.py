"""Below the pool: where the content of KV blocks goes when it has to leave the device, and how it comes back.

Two tiers: slots of host memory, and below them slots of a file. This module owns which content each slot holds, the
order in which contents are given up (least recently used first, host to disk, disk to nowhere), and the list of
copies that the next plan must carry. Like all of the cache it handles numbers: it copies nothing itself, and it knows
no sequences and no tree.

Content is known by name. The key of a block is a digest of its tokens and of the key of the block before it, hence of
the whole prefix up to its end; two blocks have one name only if they hold the same keys and values.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.core.client import TierUse
from headrace.core.step import BlockTransfer, TransferKind

BlockKey = bytes

_KEY_BYTES = 16
MAX_FETCHED_BLOCKS = 32
"""Most blocks that one plan reads from disk: a read may wait for the disk, and the step waits with it."""


def namespace_key(namespace: str) -> BlockKey:
    """The name of the empty prefix of a namespace."""
    return hashlib.blake2b(namespace.encode(), digest_size=_KEY_BYTES, person=b"namespace").digest()


def block_key(before: BlockKey, packed_tokens: bytes) -> BlockKey:
    """The name of a block with these tokens after the prefix named ``before``; about a microsecond."""
    return hashlib.blake2b(packed_tokens, digest_size=_KEY_BYTES, key=before).digest()


@dataclass(slots=True)
class TierStats:
    """Blocks moved in each direction so far, those given up for want of room, and fetches that failed."""

    offloaded_blocks: int = 0
    restored_blocks: int = 0
    spilled_blocks: int = 0
    fetched_blocks: int = 0
    dropped_blocks: int = 0
    failed_blocks: int = 0


class TierSlots:
    """The slots of one tier: free, kept under a name in order of use, pinned under a name, or held without one.

    Pinned and held slots stay until they are let go; of the others the least recently used is given up first.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(reversed(range(num_slots)))
        self._kept: OrderedDict[BlockKey, int] = OrderedDict()
        self._pinned: dict[BlockKey, tuple[int, int]] = {}  # slot and number of pins
        self._held: set[int] = set()
        self._num_untouched = num_slots
        self._num_reserved = 0

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def num_used(self) -> int:
        return self._num_slots - len(self._free)

    @property
    def num_available(self) -> int:
        """Slots ``hold`` can hand out: free, or kept and not pinned."""
        return len(self._free) - self._num_reserved + len(self._kept)

    @property
    def num_untouched(self) -> int:
        """Free slots that were never handed out, whose memory therefore was never taken. They go last."""
        return self._num_untouched

    def stop_growing(self) -> None:
        """Hand out no slot that was never handed out before."""
        self._num_reserved = self._num_untouched

    def resume_growing(self) -> None:
        self._num_reserved = 0

    @property
    def held_slots(self) -> frozenset[int]:
        return frozenset(self._held)

    def find(self, key: BlockKey) -> int | None:
        """The slot with this content."""
        slot = self._kept.get(key)
        if slot is None and (pinned := self._pinned.get(key)) is not None:
            slot = pinned[0]
        return slot

    def touch(self, key: BlockKey) -> None:
        """Note a use of content that is here."""
        if key in self._kept:
            self._kept.move_to_end(key)

    def pin(self, key: BlockKey) -> int:
        """Keep content that is here until as many ``unpin``; its slot."""
        slot = self._kept.pop(key, None)
        if slot is not None:
            self._pinned[key] = (slot, 1)
            return slot
        slot, count = self._pinned[key]
        self._pinned[key] = (slot, count + 1)
        return slot

    def unpin(self, key: BlockKey) -> None:
        slot, count = self._pinned[key]
        if count > 1:
            self._pinned[key] = (slot, count - 1)
        else:
            del self._pinned[key]
            self._kept[key] = slot

    def give_up(self) -> tuple[BlockKey, int] | None:
        """Forget the least recently used content and return its name and its slot, which is free now."""
        if not self._kept:
            return None
        key, slot = self._kept.popitem(last=False)
        self._free.append(slot)
        return key, slot

    def hold(self) -> int | None:
        """Take a free slot without giving it a name."""
        if len(self._free) <= self._num_reserved:
            return None
        slot = self._free.pop()
        self._num_untouched = min(self._num_untouched, len(self._free))  # they lie below all others
        self._held.add(slot)
        return slot

    def name(self, slot: int, key: BlockKey) -> None:
        """Keep what a held slot holds under a name that is not in use."""
        assert self.find(key) is None
        self._held.remove(slot)
        self._kept[key] = slot

    def let_go(self, slot: int) -> None:
        """Free a held slot."""
        self._held.remove(slot)
        self._free.append(slot)

    def forget(self, key: BlockKey) -> None:
        """Free the slot of some content, if it is here and not pinned."""
        slot = self._kept.pop(key, None)
        if slot is not None:
            self._free.append(slot)

    def forget_all(self) -> None:
        """Free the slots of all content that is not pinned."""
        self._free.extend(self._kept.values())
        self._kept.clear()

    def clear(self) -> None:
        self._free = list(reversed(range(self._num_slots)))
        self._kept.clear()
        self._pinned.clear()
        self._held.clear()

    def violations(self) -> list[str]:
        """Slots that have no owner or several, in words. Cost: O(slots)."""
        pinned = [slot for slot, _ in self._pinned.values()]
        owned = [*self._free, *self._kept.values(), *pinned, *self._held]
        if sorted(owned) == list(range(self._num_slots)):
            return []
        return [f"slots {sorted(owned)} are owned, which is not just each of {self._num_slots} once"]


class BlockTiers:
    """Both tiers, and the copies between them and the device that the next plan must do. One thread only.

    A copy is ordered here and done by the executor when it gets the plan. Whoever runs plans calls
    ``take_transfers`` for each and then either ``settle`` or ``abandon``. Without host slots nothing is ever kept.
    """

    def __init__(self, num_host_blocks: int = 0, num_disk_blocks: int = 0) -> None:
        assert num_disk_blocks == 0 or num_host_blocks > 0, "what is on disk comes back through the host tier"
        self.host = TierSlots(num_host_blocks)
        self.disk = TierSlots(num_disk_blocks)
        self.stats = TierStats()
        self._keys: dict[int, BlockKey] = {}  # of device blocks that have been full
        self._transfers: list[BlockTransfer] = []
        self._arriving: dict[BlockKey, int] = {}  # being fetched: host slots that nothing can be read from yet
        self._unsettled: list[tuple[TierSlots, BlockKey]] = []

    @property
    def is_off(self) -> bool:
        return self.host.num_slots == 0

    def use(self) -> TierUse:
        """What is in the tiers and what was moved so far."""
        stats = self.stats
        return TierUse(
            num_host_blocks=self.host.num_used,
            num_disk_blocks=self.disk.num_used,
            num_offloaded=stats.offloaded_blocks,
            num_restored=stats.restored_blocks,
            num_spilled=stats.spilled_blocks,
            num_fetched=stats.fetched_blocks,
            num_dropped=stats.dropped_blocks,
            num_failed=stats.failed_blocks,
        )

    @property
    def has_disk(self) -> bool:
        return self.disk.num_slots > 0

    # -- names --------------------------------------------------------------------------------------

    def key_of(self, block_id: int) -> BlockKey:
        """The name of a device block that was given one."""
        return self._keys[block_id]

    def name_blocks(self, block_ids: Sequence[int], before: BlockKey, packed_blocks: Iterable[bytes]) -> None:
        """Name full device blocks in a row, so that they can be found again after they have left the device."""
        key = before
        for block_id, packed in zip(block_ids, packed_blocks, strict=True):
            key = self._keys[block_id] = block_key(key, packed)

    def unname(self, block_ids: Iterable[int]) -> None:
        """What device blocks hold has no name from now on."""
        for block_id in block_ids:
            self._keys.pop(block_id, None)

    # -- across -------------------------------------------------------------------------------------

    def copy(self, source: int, target: int) -> None:
        """Copy the content that one device block has now to another."""
        self._order(TransferKind.COPY, source, target)

    # -- down ---------------------------------------------------------------------------------------

    def keep(self, block_ids: Iterable[int]) -> None:
        """Offload those of some device blocks that have a name, as they are about to be given to somebody else.

        Content that is in the host tier already is not copied again; there may be no room for any.
        """
        if self.is_off:
            return
        for block_id in block_ids:
            key = self._keys.pop(block_id, None)
            if key is None:
                continue  # a block that is not full is not worth a slot
            if self.host.find(key) is not None:
                self.host.touch(key)
            elif key not in self._arriving and (slot := self._hold_host_slot()) is not None:
                self._order(TransferKind.OFFLOAD, block_id, slot)
                self.host.name(slot, key)
                self._unsettled.append((self.host, key))
                self.stats.offloaded_blocks += 1

    def hold(self, block_ids: Sequence[int]) -> list[int] | None:
        """Offload device blocks to slots that stay until ``let_go``; ``None`` if there is no room for all."""
        if len(block_ids) > self.host.num_available:
            return None
        slots = []
        for block_id in block_ids:
            slot = self._hold_host_slot()
            assert slot is not None
            self._order(TransferKind.OFFLOAD, block_id, slot)
            slots.append(slot)
        self.stats.offloaded_blocks += len(slots)
        return slots

    def let_go(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.host.let_go(slot)

    def _hold_host_slot(self) -> int | None:
        """A host slot of one's own, at the cost of the least recently used content if need be."""
        slot = self.host.hold()
        if slot is not None:
            return slot
        oldest = self.host.give_up()
        if oldest is None:
            return None
        self._spill(*oldest)
        return self.host.hold()

    def _spill(self, key: BlockKey, host_slot: int) -> None:
        """Write content that has just lost its host slot to disk, if there is one and it is not there already."""
        if self.disk.find(key) is not None:
            self.disk.touch(key)
            return
        slot = self.disk.hold()
        if slot is None and self.disk.give_up() is not None:
            self.stats.dropped_blocks += 1
            slot = self.disk.hold()
        if slot is None:
            self.stats.dropped_blocks += 1
            return
        self._order(TransferKind.SPILL, host_slot, slot)
        self.disk.name(slot, key)
        self._unsettled.append((self.disk, key))
        self.stats.spilled_blocks += 1

    # -- up -----------------------------------------------------------------------------------------

    def restore(self, slots: Iterable[int], block_ids: Iterable[int]) -> None:
        """Copy the content of host slots, which must stay until this call, to device blocks."""
        for slot, block_id in zip(slots, block_ids, strict=True):
            self._order(TransferKind.RESTORE, slot, block_id)
            self.stats.restored_blocks += 1

    def is_arriving(self, key: BlockKey) -> bool:
        return key in self._arriving

    def fetch(self, key: BlockKey) -> bool:
        """Begin to bring content from disk to the host tier. Returns False if it is not there, or not now."""
        source = self.disk.find(key)
        if source is None or len(self._arriving) >= MAX_FETCHED_BLOCKS:
            return False
        self.disk.pin(key)  # making room must not spill over what is to be read
        target = self._hold_host_slot()
        self.disk.unpin(key)
        if target is None:
            return False
        self._order(TransferKind.FETCH, source, target)
        self._arriving[key] = target
        self.stats.fetched_blocks += 1
        return True

    # -- plans --------------------------------------------------------------------------------------

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """The copies ordered since the last call, for the plan that is being made."""
        transfers, self._transfers = tuple(self._transfers), []
        return transfers

    def settle(self, failed: Iterable[BlockTransfer]) -> None:
        """The plan's transfers were done, but for fetches that brought nothing back."""
        failed_slots = {transfer.target for transfer in failed}
        for key, slot in self._arriving.items():
            if slot in failed_slots or self.host.find(key) is not None:
                self.host.let_go(slot)
            else:
                self.host.name(slot, key)
            if slot in failed_slots:
                self.disk.forget(key)
                self.stats.failed_blocks += 1
        self._arriving.clear()
        self._unsettled.clear()

    def abandon(self) -> None:
        """The plan failed: what it was to write into the tiers is not there."""
        for slots, key in self._unsettled:
            slots.forget(key)
        self.let_go(self._arriving.values())
        self._arriving.clear()
        self._unsettled.clear()

    def _order(self, kind: TransferKind, source: int, target: int) -> None:
        self._transfers.append(BlockTransfer(kind, source, target))

    # -- check and repair ---------------------------------------------------------------------------

    def forget_contents(self) -> None:
        """Forget all that is known by name; what is held stays."""
        self.host.forget_all()
        self.disk.forget_all()

    def clear(self) -> None:
        """Forget everything below the device."""
        self.host.clear()
        self.disk.clear()
        self._arriving.clear()
        self._unsettled.clear()
        self._transfers.clear()

    def violations(self, held_slots: Sequence[int]) -> list[str]:
        """What is wrong with the tiers' books, given the host slots that others hold; empty when all is well."""
        found = [f"host tier: {text}" for text in self.host.violations()]
        found += [f"disk tier: {text}" for text in self.disk.violations()]
        expected = sorted([*held_slots, *self._arriving.values()])
        if sorted(self.host.held_slots) != expected:
            found.append(f"host tier: slots {sorted(self.host.held_slots)} are held, but {expected} have a holder")
        return found
