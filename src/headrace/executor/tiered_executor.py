"""An executor that does a plan's transfers, then lets another one compute.

Owns the host tier's arena and moves blocks between it, the device and the disk tier. Which block goes where is the
plan's business, what is in a block the device's; this sees bytes. Works the same over any backend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.step import BlockTransfer, Executor, PendingMask, StepPlan, StepResult, TransferKind
from headrace.executor.disk_blocks import DiskBlocks

Int32Array = NDArray[np.int32]
ByteArray = NDArray[np.uint8]


class BlockMemory(Protocol):
    """The KV memory that kernels read, as far as moving whole blocks goes."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's content in all layers."""
        ...

    def host_arena(self, num_slots: int) -> ByteArray:
        """Host memory for so many blocks, ``[num_slots, block_bytes]``, of the kind that is copied fastest."""
        ...

    def copy_out(self, block_ids: Int32Array, contents: ByteArray, rows: Int32Array) -> None:
        """Copy block ``block_ids[i]`` to ``contents[rows[i]]``; done when this returns."""
        ...

    def copy_in(self, block_ids: Int32Array, contents: ByteArray, rows: Int32Array) -> None:
        """Copy ``contents[rows[i]]`` to block ``block_ids[i]``; done when this returns."""
        ...

    def copy_blocks(self, sources: Int32Array, targets: Int32Array) -> None:
        """Copy block ``sources[i]`` to block ``targets[i]``, in order and without taking memory."""
        ...


class TierMemory:
    """The content of the tiers below a device, and all copies between the three."""

    def __init__(self, device: BlockMemory, num_host_blocks: int, disk: DiskBlocks | None) -> None:
        self._device = device
        self._host = device.host_arena(num_host_blocks)  # [num_host_blocks, block_bytes]
        self._disk = disk

    def transfer(self, transfers: Sequence[BlockTransfer]) -> Iterator[BlockTransfer]:
        """Do all transfers in order; yields those that failed.

        Neighbours of one kind are done together: none of them reads what one before it writes.
        """
        for kind, group in groupby(transfers, key=lambda transfer: transfer.kind):
            together = list(group)
            if kind is TransferKind.COPY:
                self._device.copy_blocks(_int32([t.source for t in together]), _targets(together))
            elif kind is TransferKind.OFFLOAD:
                self._device.copy_out(_int32([t.source for t in together]), self._host, _targets(together))
            elif kind is TransferKind.RESTORE:
                self._device.copy_in(_targets(together), self._host, _int32([t.source for t in together]))
            else:
                yield from (transfer for transfer in together if not self._is_done_on_disk(transfer))

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def _is_done_on_disk(self, transfer: BlockTransfer) -> bool:
        assert self._disk is not None, "the plan uses a disk tier that there is not"
        if transfer.kind is TransferKind.SPILL:
            self._disk.write(transfer.target, self._host[transfer.source])
            return True
        return self._disk.read(transfer.source, self._host[transfer.target])


class TieredExecutor:
    """Implements ``core.step.Executor`` over another one whose plans may carry transfers. One thread only."""

    def __init__(self, inner: Executor, tiers: TierMemory) -> None:
        self._inner = inner
        self._tiers = tiers

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        if not plan.transfers:
            return self._inner.execute(plan, token_mask)
        started = time.perf_counter()
        try:
            failed = tuple(self._tiers.transfer(plan.transfers))
        except MemoryError as error:  # the same from the inner executor says that everything was moved
            raise RuntimeError("there was no memory to move KV blocks") from error
        transfer_s = time.perf_counter() - started
        if not plan.scheduled:
            return StepResult([], transfer_s, transfer_s=transfer_s, failed_transfers=failed)
        result = self._inner.execute(plan, token_mask)
        return replace(result, elapsed_s=result.elapsed_s + transfer_s, transfer_s=transfer_s, failed_transfers=failed)

    def close(self) -> None:
        self._tiers.close()
        self._inner.close()


def _targets(transfers: Sequence[BlockTransfer]) -> Int32Array:
    return _int32([transfer.target for transfer in transfers])


def _int32(numbers: list[int]) -> Int32Array:
    return np.array(numbers, np.int32)
