"""From a model reference to a compiled folder: resolve, pack, tune, check, write.

The one place where the parts of compiling meet; each part is owned elsewhere. A folder appears under its name in
one rename, complete.
"""

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
from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.reference import resolve_model
from headrace.core.compiled_files import TOKENIZER_FILE, is_compiled
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.core.progress import Progress
from headrace.core.units import format_bytes
from headrace.engine.factory import reported
from headrace.engine.tokenizer import Tokenizer, read_spec
from headrace.engine.tokenizer_spec import write_spec_file
from headrace.executor.memory_budget import available_memory_bytes
from headrace.executor.native_weights import WeightChoice, pack_model, weight_choice
from headrace.model.config_parser import parse_model_config
from headrace.native.accuracy import Accuracy, calibration_text, compare, evaluate
from headrace.native.compiled import open_compiled, write_weights
from headrace.native.host import this_host
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
from headrace.native.tuning import MatrixShape, TuningTable, default_table, tune

_BYTES_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True)
class CompileJob:
    """What to compile into ``output``.

    A ``tuning_budget_s`` of 0 keeps what the kernels propose. ``replaces`` allows an older compiled folder in the
    way; ``checks_accuracy`` needs memory for the weights in float32.
    """

    model: str
    output: Path
    threads: int
    dtype: str = "auto"
    tuning_budget_s: float = 2.0
    checks_accuracy: bool = True
    replaces: bool = False


def compile_model(job: CompileJob, progress: Progress) -> Manifest:
    """Compile and write. Raises ``ConfigError`` for what cannot be compiled or written; then nothing is left behind."""
    _check_output(job)
    path = resolve_model(job.model, progress)
    if is_compiled(path):
        raise ConfigError(f"{path} is compiled already; give the model it was made from", "model")
    checkpoint = open_checkpoint(path)
    model = parse_model_config(checkpoint)
    spec = read_spec(path)
    with reported(progress, "packing") as report:
        packed = pack_model(checkpoint, model, weight_choice(job.dtype), job.threads, report)
    tuning = _tuning(job, packed, progress)
    program = NativeProgram.build(model, packed.matrices, packed.vectors, tuning=tuning)
    token_ids = Tokenizer(spec).encode(calibration_text())[: model.max_position]
    accuracy = _accuracy(job, checkpoint, program, packed, token_ids, progress) if job.checks_accuracy else None
    files = _source_files(checkpoint, progress)
    with _staged(job, packed.num_bytes) as folder:
        write_spec_file(folder / TOKENIZER_FILE, spec)
        progress.start("writing", packed.num_bytes, "bytes")
        try:
            written = write_weights(folder, packed, progress.advance)
        finally:
            progress.finish()
        manifest = Manifest(
            schema=SCHEMA,
            version=version("headrace"),
            host=tuning.host,
            source=Source(job.model, checkpoint.format, tuple(files)),
            dtype=job.dtype,
            model=model,
            weights_bytes=written.num_bytes,
            weights_sha256=written.sha256,
            matrices=written.matrices,
            vectors=written.vectors,
            memory=_memory(program, model),
            tuning=tuning,
            accuracy=accuracy,
        )
        write_manifest(folder, manifest)
        read_spec(folder)  # what cannot be read back is not published
        open_compiled(folder)
    return manifest


def _check_output(job: CompileJob) -> None:
    output = job.output
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"{output} exists and is not a folder; choose another with -o", "output")
    if not is_compiled(output):
        if any(output.iterdir()):
            raise ConfigError(
                f"{output} has other things in it than a compiled model; choose another with -o", "output"
            )
    elif not job.replaces:
        raise ConfigError(f"{output} exists; replace it with --force, or choose another with -o", "output")


def _tuning(job: CompileJob, packed: PackedModel, progress: Progress) -> TuningTable:
    host = this_host()
    if job.tuning_budget_s == 0:
        return default_table(map(MatrixShape.of, packed.multiplied.values()), host, job.threads)
    progress.start("tuning", None, "items")
    try:
        return tune(packed.multiplied, host, job.threads, job.tuning_budget_s)
    finally:
        progress.finish()


def _accuracy(
    job: CompileJob,
    checkpoint: Checkpoint,
    program: NativeProgram,
    packed: PackedModel,
    token_ids: Sequence[int],
    progress: Progress,
) -> Accuracy:
    model = program.config
    evaluation = evaluate(program, token_ids, job.threads)
    reference, reference_program = packed, program
    if packed.formats != "float32":
        _check_reference_memory(model)
        with reported(progress, "packing the float32 reference") as report:
            reference = pack_model(checkpoint, model, WeightChoice.F32, job.threads, report)
        reference_program = NativeProgram.build(model, reference.matrices, reference.vectors)
    progress.start("checking accuracy", None, "items")
    try:
        return compare(
            evaluation,
            evaluate(reference_program, token_ids, job.threads),
            packed.matrices,
            reference.matrices,
        )
    finally:
        progress.finish()


def _check_reference_memory(model: ModelConfig) -> None:
    needed, available = 4 * model.num_parameters, available_memory_bytes()
    if needed > available:
        raise ConfigError(
            f"the accuracy check needs {format_bytes(needed)} for the weights in float32, but "
            f"{format_bytes(available)} of memory are free; leave it out with --no-check",
            "check",
        )


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
def _staged(job: CompileJob, num_bytes: int) -> Iterator[Path]:
    """A new folder that takes the output's place when the block ends well, and is gone when it does not."""
    output = job.output.absolute()
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
