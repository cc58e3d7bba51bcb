"""Writes a compiled folder: it appears under its name in one rename, complete, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.core.compiled_files import TOKENIZER_FILE
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.core.progress import Progress
from headrace.core.units import format_bytes
from headrace.engine.stored_tokens import read_tokens, write_tokens
from headrace.engine.token_table import TokenTable
from headrace.engine.tokenizer import read_spec
from headrace.engine.tokenizer_spec import TokenizerSpec, write_spec_file
from headrace.native.accuracy import Accuracy
from headrace.native.compiled import open_compiled, write_weights
from headrace.native.manifest import (
    SCHEMA,
    Manifest,
    MemoryPlan,
    PlannedBuffer,
    Source,
    SourceFile,
    write_manifest,
)
from headrace.native.packed_model import PackedModel
from headrace.native.program import NativeProgram
from headrace.native.tuning import TuningTable

_BYTES_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """All that goes into a folder. ``reference`` and ``dtype`` are what was asked for."""

    reference: str
    dtype: str
    checkpoint: Checkpoint
    spec: TokenizerSpec
    tokens: TokenTable | None
    packed: PackedModel
    program: NativeProgram
    tuning: TuningTable
    accuracy: Accuracy | None = None


def write_compiled(output: Path, compilation: Compilation, progress: Progress) -> Manifest:
    """Write and check. An older folder in the way is replaced. Raises ``ConfigError``; then nothing is left behind."""
    files = _source_files(compilation.checkpoint, progress)
    with _staged(output, compilation.packed.num_bytes) as folder:
        write_spec_file(folder / TOKENIZER_FILE, compilation.spec)
        if compilation.tokens is not None:
            write_tokens(folder, compilation.tokens)
        manifest = _write_weights(folder, compilation, files, progress)
        read_spec(folder)
        read_tokens(folder)  # what cannot be read back is not published
        open_compiled(folder)
    return manifest


def _write_weights(folder: Path, made: Compilation, files: Sequence[SourceFile], progress: Progress) -> Manifest:
    progress.start("writing", made.packed.num_bytes, "bytes")
    try:
        written = write_weights(folder, made.packed, progress.advance)
    finally:
        progress.finish()
    model = made.program.config
    manifest = Manifest(
        schema=SCHEMA,
        version=version("headrace"),
        host=made.tuning.host,
        source=Source(made.reference, made.checkpoint.format, tuple(files)),
        dtype=made.dtype,
        model=model,
        weights_bytes=written.num_bytes,
        weights_sha256=written.sha256,
        matrices=written.matrices,
        vectors=written.vectors,
        memory=_memory(made.program, model),
        tuning=made.tuning,
        accuracy=made.accuracy,
    )
    write_manifest(folder, manifest)
    return manifest


def _source_files(checkpoint: Checkpoint, progress: Progress) -> list[SourceFile]:
    """The weight files with their digests."""
    paths: Sequence[Path] = [checkpoint.path]
    if checkpoint.format == "safetensors":
        paths = sorted(checkpoint.folder.glob("*.safetensors"))
    progress.start("hashing the source", sum(path.stat().st_size for path in paths), "bytes")
    try:
        return [SourceFile(path.name, path.stat().st_size, _sha256(path, progress)) for path in paths]
    finally:
        progress.finish()


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_BYTES_AT_ONCE):
            digest.update(data)
            progress.advance(len(data))
    return digest.hexdigest()


def _memory(program: NativeProgram, model: ModelConfig) -> MemoryPlan:
    offsets = program.arena.offsets
    return MemoryPlan(
        arena_row_bytes=program.arena.row_bytes,
        kv_token_bytes=model.kv_bytes_per_token(2),
        buffers=tuple(PlannedBuffer(b.name, offsets[b.name], b.row_bytes) for b in program.listing.buffers),
    )


@contextmanager
def _staged(output: Path, num_bytes: int) -> Iterator[Path]:
    """A new folder that takes the output's place when the block ends well, and is gone when it does not."""
    output = output.absolute()
    staging = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output.parent).free
        if free < num_bytes:
            raise _no_space(output, num_bytes, free)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        yield staging
        _publish(staging, output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(output, num_bytes, shutil.disk_usage(output.parent).free) from error
        raise ConfigError(
            f"cannot write {output}: {error.strerror}; choose another folder with -o", "output"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, output: Path) -> None:
    """Rename into place; what was there is kept until the new folder is."""
    if not output.exists():
        staging.rename(output)
        return
    old = staging.with_name(staging.name + ".old")
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old)


def _no_space(output: Path, num_bytes: int, free: int) -> ConfigError:
    return ConfigError(
        f"no space for {output}: it takes {format_bytes(num_bytes)}, but {format_bytes(free)} are free; choose another "
        "folder with -o",
        "output",
    )
