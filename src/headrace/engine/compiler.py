"""From a model reference to a compiled folder: resolve, pack, tune, check, write.

The one place where the parts of compiling meet; each part is owned elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.reference import resolve_model
from headrace.core.compiled_files import is_compiled
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.core.progress import Progress
from headrace.core.units import format_bytes
from headrace.engine.compiled_folder import Compilation, write_compiled
from headrace.engine.factory import reported
from headrace.engine.tokenizer import Tokenizer, read_spec
from headrace.executor.machine_memory import available_memory_bytes
from headrace.executor.native_weights import WeightChoice, pack_model, weight_choice
from headrace.model.config_parser import parse_model_config
from headrace.native.accuracy import Accuracy, calibration_text, compare, evaluate
from headrace.native.host import this_host
from headrace.native.manifest import Manifest
from headrace.native.packed_model import PackedModel
from headrace.native.program import NativeProgram
from headrace.native.tuning import MatrixShape, TuningTable, default_table, tune


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
    tokenizer = Tokenizer(spec)
    token_ids = tokenizer.encode(calibration_text())[: model.max_position]
    accuracy = _accuracy(job, checkpoint, program, packed, token_ids, progress) if job.checks_accuracy else None
    compilation = Compilation(
        job.model, job.dtype, checkpoint, spec, tokenizer.table, packed, program, tuning, accuracy
    )
    return write_compiled(job.output, compilation, progress)


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
