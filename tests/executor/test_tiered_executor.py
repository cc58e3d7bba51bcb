"""Blocks moved between device, host and disk come back bit for bit, on every backend and in every format."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.core.errors import ConfigError
from headrace.core.step import BlockTransfer, PendingMask, StepPlan, StepResult, TransferKind
from headrace.executor.disk_blocks import DiskBlocks
from headrace.executor.tiered_executor import BlockMemory, TieredExecutor, TierMemory
from headrace.model.kv_memory import PagedKVMemory
from headrace.native.operations import KvFormat, WeightFormat
from headrace.native.program import NativeProgram, NativeRuntime, RuntimeSizes
from tests.native.configs import SHAPES, random_matrices, random_vectors

NUM_BLOCKS = 6
CONFIG = SHAPES["norms around"]

COPY, OFFLOAD, RESTORE, SPILL, FETCH = TransferKind


def native_memory(kv_format: KvFormat) -> NativeRuntime:
    program = NativeProgram.build(CONFIG, random_matrices(CONFIG, WeightFormat.F32), random_vectors(CONFIG))
    return NativeRuntime(program, RuntimeSizes(NUM_BLOCKS, 16, 16, 4, 96, 1), kv_format)


MEMORIES = {
    "native float32": lambda: native_memory(KvFormat.F32),
    "native float16": lambda: native_memory(KvFormat.F16),
    "native bfloat16": lambda: native_memory(KvFormat.BF16),
    "native int8": lambda: native_memory(KvFormat.INT8),
    "torch float32": lambda: PagedKVMemory(CONFIG, NUM_BLOCKS, 16, torch.float32),
    "torch bfloat16": lambda: PagedKVMemory(CONFIG, NUM_BLOCKS, 16, torch.bfloat16),
}


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest) -> BlockMemory:
    """Six blocks, each full of its own noise."""
    device: BlockMemory = MEMORIES[request.param]()
    device.copy_in(ids(*range(NUM_BLOCKS)), noise(device), ids(*range(NUM_BLOCKS)))
    return device


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def noise(device: BlockMemory) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (NUM_BLOCKS, device.block_bytes), np.uint8)


def contents(device: BlockMemory) -> np.ndarray:
    copied = np.empty((NUM_BLOCKS, device.block_bytes), np.uint8)
    device.copy_out(ids(*range(NUM_BLOCKS)), copied, ids(*range(NUM_BLOCKS)))
    return copied


class StubExecutor:
    """Computes nothing; remembers what it was given."""

    num_blocks = NUM_BLOCKS

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        self.plans.append(plan)
        return StepResult([], 1.0)

    def close(self) -> None:
        pass


def moved(device: BlockMemory, transfers: list[tuple[TransferKind, int, int]], disk: DiskBlocks | None = None):
    tiers = TierMemory(device, 4, disk)
    plan = StepPlan(1, (), transfers=tuple(BlockTransfer(*transfer) for transfer in transfers))
    return TieredExecutor(StubExecutor(), tiers).execute(plan, None)


def test_a_block_comes_back_from_the_host_as_it_went(memory: BlockMemory) -> None:
    before = contents(memory)
    assert (before == noise(memory)).all()
    result = moved(memory, [(OFFLOAD, 1, 3), (OFFLOAD, 4, 0), (RESTORE, 3, 5), (RESTORE, 0, 1)])
    after = contents(memory)
    assert (after[5] == before[1]).all()
    assert (after[1] == before[4]).all()
    assert (after[[0, 2, 3, 4]] == before[[0, 2, 3, 4]]).all()
    assert result.failed_transfers == ()


def test_transfers_take_effect_in_their_order(memory: BlockMemory) -> None:
    before = contents(memory)
    moved(
        memory, [(OFFLOAD, 0, 0), (RESTORE, 0, 1), (OFFLOAD, 2, 0), (RESTORE, 0, 3), (OFFLOAD, 1, 1), (RESTORE, 1, 4)]
    )
    after = contents(memory)
    assert (after[[1, 3, 4]] == before[[0, 2, 0]]).all()


def test_a_block_is_copied_within_the_device(memory: BlockMemory) -> None:
    before = contents(memory)
    result = moved(memory, [(COPY, 1, 3), (COPY, 3, 5), (COPY, 4, 4), (OFFLOAD, 3, 0), (COPY, 0, 3), (RESTORE, 0, 2)])
    after = contents(memory)
    assert (after == before[[0, 1, 1, 0, 4, 1]]).all()
    assert result.failed_transfers == ()


class NoMemoryAtAll:
    """A device that cannot even move a block."""

    block_bytes = 4

    def host_arena(self, num_slots: int) -> np.ndarray:
        return np.zeros((num_slots, 4), np.uint8)

    def copy_out(self, block_ids: np.ndarray, contents: np.ndarray, rows: np.ndarray) -> None:
        raise MemoryError

    copy_in = copy_out

    def copy_blocks(self, sources: np.ndarray, targets: np.ndarray) -> None:
        raise MemoryError


@pytest.mark.parametrize("kind", [COPY, OFFLOAD, RESTORE])
def test_no_memory_to_move_blocks_is_not_taken_for_none_to_compute(kind: TransferKind) -> None:
    with pytest.raises(RuntimeError, match="no memory to move"):
        moved(NoMemoryAtAll(), [(kind, 0, 1)])


def test_copies_need_no_tiers(memory: BlockMemory) -> None:
    before = contents(memory)
    tiers = TierMemory(memory, 0, None)
    plan = StepPlan(1, (), transfers=(BlockTransfer(COPY, 0, 5),))
    assert TieredExecutor(StubExecutor(), tiers).execute(plan, None).failed_transfers == ()
    assert (contents(memory)[5] == before[0]).all()


def test_a_block_comes_back_from_disk_as_it_went(memory: BlockMemory, tmp_path: Path) -> None:
    before = contents(memory)
    disk = DiskBlocks(tmp_path / "kv", 2, memory.block_bytes)
    moved(memory, [(OFFLOAD, 1, 0), (SPILL, 0, 1), (OFFLOAD, 2, 0), (FETCH, 1, 2), (RESTORE, 2, 4)], disk)
    assert (contents(memory)[4] == before[1]).all()


def test_what_a_disk_changed_is_not_taken_back(memory: BlockMemory, tmp_path: Path) -> None:
    disk = DiskBlocks(tmp_path / "kv", 2, memory.block_bytes)
    moved(memory, [(OFFLOAD, 1, 0), (SPILL, 0, 1), (OFFLOAD, 2, 0), (SPILL, 0, 0)], disk)
    disk._blocks[1, memory.block_bytes // 2] ^= 1
    result = moved(memory, [(FETCH, 1, 2), (FETCH, 0, 3)], disk)
    assert result.failed_transfers == (BlockTransfer(FETCH, 1, 2),)


def test_a_slot_that_was_never_written_cannot_be_read(tmp_path: Path) -> None:
    disk = DiskBlocks(tmp_path / "kv", 2, 8)
    assert not disk.read(0, np.zeros(8, np.uint8))


def test_the_file_is_out_of_sight_and_its_space_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    before = os.statvfs(tmp_path).f_bfree
    disk = DiskBlocks(path, 64, 1 << 16)
    assert not path.exists()
    taken = (before - os.statvfs(tmp_path).f_bfree) * os.statvfs(tmp_path).f_frsize
    disk.close()
    assert taken >= 64 << 15, "most of it, whatever else the disk is used for meanwhile"
    DiskBlocks(path, 1, 8).close()


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("dear diary")
    with pytest.raises(ConfigError, match="which exists; name a file that does not"):
        DiskBlocks(path, 1, 8)
    assert path.read_text() == "dear diary"


def test_a_folder_that_does_not_exist_and_a_disk_too_small_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be created"):
        DiskBlocks(tmp_path / "no" / "kv", 1, 8)
    with pytest.raises(ConfigError, match="lower --disk-kv-cache-bytes"):
        DiskBlocks(tmp_path / "kv", 1 << 40, 1 << 20)


def test_a_plan_of_transfers_alone_computes_nothing(memory: BlockMemory) -> None:
    inner = StubExecutor()
    executor = TieredExecutor(inner, TierMemory(memory, 4, None))
    result = executor.execute(StepPlan(1, (), transfers=(BlockTransfer(OFFLOAD, 0, 0),)), None)
    assert inner.plans == []
    assert result.sampled_token_ids == []
    assert 0 < result.transfer_s == result.elapsed_s


@pytest.mark.parametrize("kv_format", KvFormat)
def test_copies_out_of_bounds_are_refused(kv_format: KvFormat) -> None:
    device = native_memory(kv_format)
    arena = device.host_arena(2)
    for block_ids, rows in (((NUM_BLOCKS,), (0,)), ((-1,), (0,)), ((0,), (2,)), ((0,), (-1,)), ((0, 1), (0,))):
        with pytest.raises(ValueError, match=r"out of bounds|one row for each"):
            device.copy_out(ids(*block_ids), arena, ids(*rows))
        with pytest.raises(ValueError, match=r"out of bounds|one row for each"):
            device.copy_in(ids(*block_ids), arena, ids(*rows))
    with pytest.raises(ValueError, match="rows of block_bytes"):
        device.copy_in(ids(0), np.zeros((1, 7), np.uint8), ids(0))
