"""Thousands of mutated files: each is read or is a ConfigError, quickly and in little memory.

The mutations are drawn from a fixed seed, so that a failure is repeated by running the test again.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.gguf import open_gguf
from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.safetensors import open_safetensors
from headrace.core.errors import ConfigError
from tests.checkpoint.builders import (
    ARRAY,
    GGUF,
    STRING,
    Info,
    entry,
    safetensors_bytes,
    small_gguf,
    small_safetensors,
    write_folder,
)
from tests.checkpoint.mutations import mutant

NUM_MUTANTS = 1000
TIME_LIMIT_S = 1.0
MEMORY_LIMIT_BYTES = 64 << 20


def outcome(open_it: Callable[[Path], Checkpoint], path: Path) -> ConfigError | None:
    """Open the file and read every tensor it claims; any exception but ConfigError is the test's failure."""
    try:
        for tensor in open_it(path).tensors.values():
            tensor.to_float32()
    except ConfigError as error:
        return error
    return None


def check_error(error: ConfigError) -> None:
    assert error.field
    assert len(error.message) < 2000
    assert error.message.isprintable()  # nothing in a file may reach the terminal as a control character


def peak_bytes(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_mutants(whole: bytes, path: Path, open_it: Callable[[Path], Checkpoint], seed: int) -> None:
    rng = random.Random(seed)
    num_refused = 0
    for _ in range(NUM_MUTANTS):
        path.write_bytes(mutant(whole, rng))
        started = time.process_time()
        error = outcome(open_it, path)
        assert time.process_time() - started < TIME_LIMIT_S
        if error is not None:
            check_error(error)
            num_refused += 1
    assert NUM_MUTANTS // 4 < num_refused < NUM_MUTANTS  # the mutations do bite, and not all alike


@pytest.mark.parametrize("seed", range(2))
def test_a_mutated_gguf_file_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    check_mutants(small_gguf().encode(), path, open_gguf, seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_mutated_safetensors_file_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": {"model_type": "llama"}})
    check_mutants(small_safetensors(), folder / "model.safetensors", open_safetensors, seed)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_a_mutated_json_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 32}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    config = {"model_type": "llama", "rope_scaling": {"factor": 8.0}, "eos_token_id": [1, 2]}
    folder = write_folder(
        tmp_path,
        {
            "config.json": config,
            "generation_config.json": config,
            "model.safetensors.index.json": index,
            "one.safetensors": small_safetensors(),
        },
    )
    path = folder / name
    check_mutants(path.read_bytes(), path, lambda _: open_safetensors(folder), seed=7)


def test_mutated_files_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    whole = small_gguf().encode()
    rng = random.Random(9)

    def open_mutants() -> None:
        for _ in range(500):
            path.write_bytes(mutant(whole, rng))
            outcome(open_gguf, path)

    assert peak_bytes(open_mutants) < MEMORY_LIMIT_BYTES


BOMB_BYTES = 2 << 20


def gguf_bomb(element_type: int, element_bytes: int) -> bytes:
    array = struct.pack("<IQ", element_type, BOMB_BYTES // element_bytes) + bytes(BOMB_BYTES)
    return GGUF(entries=[entry("k", ARRAY, array)]).encode()


BOMBS: dict[str, Callable[[], bytes]] = {
    "hundreds of thousands of empty strings.gguf": lambda: gguf_bomb(STRING, 8),
    "hundreds of thousands of empty arrays.gguf": lambda: gguf_bomb(ARRAY, 12),
    "thirty thousand tensors.gguf": lambda: GGUF(
        infos=[Info(f"{i:05d}", [1], offset=32 * i) for i in range(30_000)]
    ).encode(),
    "metadata.safetensors": lambda: safetensors_bytes(b'{"__metadata__":{' + b'"":"",' * 60_000 + b'"":""}}'),
    "long key.safetensors": lambda: safetensors_bytes(b'{"' + b"a" * BOMB_BYTES + b'":{}}'),
    "escapes.safetensors": lambda: safetensors_bytes(b'{"' + b"\\n" * BOMB_BYTES + b'":{}}'),
    "open string.safetensors": lambda: safetensors_bytes(b'{"' + b"\\\\" * BOMB_BYTES),
    "brackets.safetensors": lambda: safetensors_bytes(b'{"a":{"shape":' + b"[" * BOMB_BYTES + b"}}"),
    "long shape.safetensors": lambda: safetensors_bytes(b'{"a":{"shape":[' + b"1," * BOMB_BYTES + b"1]}}"),
}
"""Files whose size is honest and whose content is meant to cost far more than it."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little_time_and_memory(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": {}, name: BOMBS[name]()})
    for _ in range(3):  # a busy neighbour doubles the time of one
        started = time.process_time()
        error = outcome(open_checkpoint, folder / name)
        elapsed_s = time.process_time() - started
        if elapsed_s < TIME_LIMIT_S:
            break
    assert elapsed_s < TIME_LIMIT_S
    if error is not None:
        check_error(error)
    assert peak_bytes(lambda: outcome(open_checkpoint, folder / name)) < MEMORY_LIMIT_BYTES


def test_a_huge_sparse_file_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(GGUF(entries=[entry("k", STRING, struct.pack("<Q", 1 << 39))]).encode())
        file.truncate(1 << 40)
    error = outcome(open_gguf, path)
    assert error is not None
    assert error.field == "k"
    assert peak_bytes(lambda: outcome(open_gguf, path)) < 1 << 20
