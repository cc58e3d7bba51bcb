"""What a model takes is known, and refused, before any of it is taken."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from headrace.engine.factory import build_engine, open_model, plan_of
from headrace.engine.memory_plan import PROCESS_BYTES, MemoryPlan, check_fits, plan_memory
from tests.tiny_model import VOCAB_SIZE, write_tiny_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def plan(folder: Path, available_bytes: int = GIB, **settings: object) -> MemoryPlan:
    config = EngineConfig(**{"model": str(folder), "threads": 1, **settings})
    found = open_model(folder)
    return plan_memory(config, found.source, found.model, available_bytes)


def size(planned: MemoryPlan, name: str) -> int:
    return next(item.num_bytes for item in planned.items if item.name == name)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_weights_and_cache_are_planned_as_they_will_be(folder: Path, dtype: str) -> None:
    planned = plan(folder, dtype=dtype, kv_cache_bytes=1 << 20)
    engine = build_engine(
        EngineConfig(model=str(folder), threads=1, dtype=dtype, kv_cache_bytes=1 << 20), NullProgress()
    )
    assert size(planned, "weights") == engine.info.weight_bytes
    assert size(planned, "KV cache") == engine.info.kv_cache_bytes
    assert planned.limits.max_model_len == engine.info.max_model_len


def test_steps_and_batches_have_their_share(folder: Path) -> None:
    small, large = plan(folder), plan(folder, max_num_batched_tokens=1024, max_num_seqs=128)
    assert size(large, "activations") == 2 * size(small, "activations")
    assert size(large, "logits") == 2 * size(small, "logits") == 2 * 4 * 128 * VOCAB_SIZE
    assert size(plan(folder, swap_space_bytes=1 << 20), "swap space") == 1 << 20


def test_what_fits_passes_and_what_does_not_is_refused_with_numbers_and_three_flags(folder: Path) -> None:
    planned = plan(folder, kv_cache_bytes=1 << 20)
    check_fits(planned)
    with pytest.raises(ConfigError) as caught:
        check_fits(replace(planned, available_bytes=planned.num_bytes - 1))
    for part in ("--dtype", "--kv-cache-bytes", "--max-num-batched-tokens", "160.0 MiB", "KV cache 1.0 MiB"):
        assert part in caught.value.message


def test_weights_that_leave_nothing_are_refused_before_anything_else(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights .* take .*--dtype int4") as caught:
        plan(folder, available_bytes=PROCESS_BYTES)
    assert caught.value.field == "dtype"


def test_the_limits_of_the_process_count_as_memory_that_is_not_there(folder: Path) -> None:
    script = f"""
import resource
from headrace.executor.machine_memory import available_memory_bytes
used = available_memory_bytes()
resource.setrlimit(resource.RLIMIT_AS, ({2 * GIB}, resource.RLIM_INFINITY))
assert available_memory_bytes() < {2 * GIB}, available_memory_bytes()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_a_plan_of_a_model_reference_loads_nothing(folder: Path) -> None:
    planned = plan_of(EngineConfig(model=str(folder), kv_cache_bytes=1 << 20), NullProgress())
    assert planned.fits
    assert planned.num_bytes == sum(item.num_bytes for item in planned.items)
