"""What the native executor runs, from either kind of source: a checkpoint that is packed, or a compiled folder.

Owns the choice of a tuning: a compiled folder's own where it fits this machine, else one that was measured here
before, else one that is measured now.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.executor.native_weights import Progress, WeightChoice, pack_model, weight_choice
from headrace.native.compiled import CompiledModel
from headrace.native.host import Host
from headrace.native.operations import HEAD_DIM_STEP
from headrace.native.packed_model import PackedModel
from headrace.native.program import NativeProgram
from headrace.native.tuning import MatrixShape, TuningTable, default_table, tune

logger = logging.getLogger(__name__)

# Measuring may take so long once per machine, build and model; afterwards the table is read.
_TUNING_BUDGET_S = 1.0
# Smaller models live in the caches, and no cut of them makes a difference worth a second.
_LEAST_TUNED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class NativeWeights:
    """A model's packed weights, the format that was asked for, and the tuning that came with them."""

    packed: PackedModel
    choice: WeightChoice
    tuning: TuningTable | None = None


def load_weights(
    source: Checkpoint | CompiledModel, model: ModelConfig, dtype: str, threads: int, progress: Progress
) -> NativeWeights:
    """Pack a checkpoint's weights as ``dtype`` asks, or take a compiled folder's.

    Raises ``ConfigError``, before anything is packed for a model that the kernels cannot run.
    """
    if model.head_dim % HEAD_DIM_STEP:
        raise ConfigError(
            f"head_dim is {model.head_dim}, but the native kernels take multiples of {HEAD_DIM_STEP}; run this model "
            "with --backend torch",
            "head_dim",
        )
    if isinstance(source, Checkpoint):
        choice = weight_choice(dtype)
        return NativeWeights(pack_model(source, model, choice, threads, progress), choice)
    made_as = source.manifest.dtype
    if dtype != "auto" and weight_choice(dtype) is not weight_choice(made_as):
        raise ConfigError(
            f"dtype is {dtype!r}, but {source.folder} was compiled with --dtype {made_as}; leave --dtype out, or "
            "compile the model again",
            "dtype",
        )
    return NativeWeights(source.packed.copied(threads), weight_choice(made_as), source.manifest.tuning)


def build_program(model: ModelConfig, weights: NativeWeights, tuning: TuningTable) -> NativeProgram:
    """The program of a model. Raises ``ConfigError`` for weights that are not this model's."""
    try:
        return NativeProgram.build(model, weights.packed.matrices, weights.packed.vectors, tuning=tuning)
    except KeyError as error:
        raise ConfigError(f"the weights lack {error.args[0]}; compile the model again", "matrices") from error
    except ValueError as error:
        raise ConfigError(f"the weights do not fit the model: {error}; compile the model again", "matrices") from error


def choose_tuning(weights: NativeWeights, host: Host, threads: int, cache: Path) -> TuningTable:
    """The table to run with on ``host``; ``cache`` is a folder for tables of tunings.

    A tuning changes speed alone, so whatever goes wrong with the cache is only logged.
    """
    shapes = list(dict.fromkeys(MatrixShape.of(matrix) for matrix in weights.packed.multiplied.values()))
    if weights.tuning is not None:
        if weights.tuning.fits(host, threads):
            return weights.tuning
        logger.info(
            "the compiled tuning is for %s with %d threads (build %s), not for this machine; another is used",
            weights.tuning.host.cpu,
            weights.tuning.threads,
            weights.tuning.host.build,
        )
    if weights.packed.num_bytes < _LEAST_TUNED_BYTES:
        return default_table(shapes, host, threads)
    path = cache / "tuning" / f"{_key(shapes, host, threads)}.json"
    table = _read_table(path, shapes, host, threads)
    if table is None:
        table = tune(weights.packed.multiplied, host, threads, _TUNING_BUDGET_S)
        logger.info("measured %d shapes of matrices in %.1f s", len(shapes), table.seconds)
        _write_table(path, table)
    return table


def _key(shapes: Iterable[MatrixShape], host: Host, threads: int) -> str:
    facts = msgspec.json.encode((host, threads, sorted(map(str, shapes))))
    return hashlib.sha256(facts).hexdigest()[:32]


def _read_table(path: Path, shapes: Iterable[MatrixShape], host: Host, threads: int) -> TuningTable | None:
    try:
        table = msgspec.json.decode(path.read_bytes(), type=TuningTable)
    except (OSError, msgspec.DecodeError):
        return None
    is_whole = table.fits(host, threads) and all(table.tunings(shape) is not None for shape in shapes)
    return table if is_whole else None


def _write_table(path: Path, table: TuningTable) -> None:
    staged = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(msgspec.json.encode(table))
        staged.replace(path)
    except OSError as error:
        logger.info("the tuning cannot be kept in %s: %s", path.parent, error.strerror)
        with suppress(OSError):  # there is none, or it stays until somebody tidies up
            staged.unlink()
