"""A compiled model and the memory it runs in: the typed door to C++.

``NativeProgram`` is constant and may be shared; ``NativeRuntime`` is what one engine thread runs it with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.forward_batch import ForwardBatch
from headrace.core.model_config import ModelConfig
from headrace.native import _native
from headrace.native.arena import ArenaPlan, plan_arena
from headrace.native.lowering import HEAD_INPUT, HIDDEN, LOGITS, Listing, lower
from headrace.native.operations import KvFormat, Operation
from headrace.native.packing import PackedWeight
from headrace.native.tuning import MatrixShape, TuningTable, default_tunings

Float32Array = NDArray[np.float32]
Int32Array = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class NativeProgram:
    """A model compiled from its facts and packed weights; constant after it is built."""

    config: ModelConfig
    listing: Listing
    arena: ArenaPlan
    handle: _native.Program

    @property
    def kernels(self) -> str:
        """Name of the instruction set its kernels are compiled for."""
        return self.handle.kernels

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        matrices: Mapping[str, PackedWeight],
        vectors: Mapping[str, Float32Array],
        kernels: str = "",
        tuning: TuningTable | None = None,
    ) -> NativeProgram:
        """Compile. ``vectors`` are norms and biases, and ``rope_factors`` where the model has them.

        ``kernels`` names an instruction set (``"portable"``, ``"avx2"``, ``"avx512"``, ``"avx512_bf16"``); empty takes
        the machine's best. Shapes that are not in ``tuning``, or all without one, are cut up as the kernels propose.

        Raises ``ValueError`` naming what does not fit together.
        """
        listing = lower(config, {name: m.format for name, m in matrices.items()}, frozenset(vectors))
        arena = plan_arena(listing.buffers, listing.operations, kept=[HIDDEN])
        chosen = kernels or _native.best_kernels()
        tunings = [] if tuning is None else _tunings(matrices, tuning, chosen)
        return cls(config, listing, arena, _Binder(config, listing, arena, matrices, vectors).bind(chosen, tunings))


def _tunings(
    matrices: Mapping[str, PackedWeight], tuning: TuningTable, kernels: str
) -> list[list[tuple[int, int, int, int]]]:
    """Each matrix's choices, as C++ takes them."""
    default = default_tunings(kernels)
    found = (tuning.tunings(MatrixShape.of(matrix)) or default for matrix in matrices.values())
    return [[choice.numbers for choice in choices] for choices in found]


class _Binder:
    """Turns names into the indices C++ works with."""

    def __init__(
        self,
        config: ModelConfig,
        listing: Listing,
        arena: ArenaPlan,
        matrices: Mapping[str, PackedWeight],
        vectors: Mapping[str, Float32Array],
    ) -> None:
        self._config = config
        self._listing = listing
        self._arena = arena
        self._matrices = matrices
        self._vectors = vectors
        self._buffer_ids = {buffer.name: index for index, buffer in enumerate(listing.buffers)}
        self._matrix_ids = {name: index for index, name in enumerate(matrices)}
        self._vector_ids = {name: index for index, name in enumerate(vectors)}

    def bind(self, kernels: str, tunings: list[list[tuple[int, int, int, int]]]) -> _native.Program:
        config, listing = self._config, self._listing
        return _native.Program(
            shape=[
                config.vocab_size,
                config.hidden_size,
                config.num_heads,
                config.num_kv_heads,
                config.head_dim,
                config.num_layers,
            ],
            body=[self._operation(operation) for operation in listing.body],
            tail=[self._operation(operation) for operation in listing.tail],
            head=[self._operation(operation) for operation in listing.head],
            buffers=[(b.is_quantized, b.width, self._arena.offsets[b.name]) for b in listing.buffers],
            matrices=[(int(m.format), m.num_rows, m.num_columns, m.data) for m in self._matrices.values()],
            vectors=[np.ascontiguousarray(v, np.float32) for v in self._vectors.values()],
            ropes=self._ropes(),
            named_buffers=[self._buffer_ids[name] for name in (HIDDEN, HEAD_INPUT, LOGITS)],
            kernels=kernels,
            tunings=tunings,
        )

    def _ropes(self) -> list[tuple[int, float, Float32Array]]:
        factors = self._vectors.get("rope_factors", np.float32(1.0))
        return [
            (rope.rotary_dim, float(rope.attention_factor), (rope.inverse_frequencies() / factors).astype(np.float32))
            for rope in self._listing.ropes
        ]

    def _operation(self, operation: Operation) -> _native.Operation:
        bound = _native.Operation(operation.kind, operation.epilogue, operation.activation)
        bound.output = self._buffer_ids[operation.output]
        if operation.input is not None:
            bound.input = self._buffer_ids[operation.input]
        if operation.matrix is not None:
            bound.matrix = self._matrix_ids[operation.matrix]
        if operation.vector is not None:
            bound.vector = self._vector_ids[operation.vector]
        if operation.second_vector is not None:
            bound.second_vector = self._vector_ids[operation.second_vector]
        bound.layer, bound.rope, bound.window = operation.layer, operation.rope, operation.window
        bound.norm_whole, bound.scale = operation.norm_whole, operation.scale
        bound.eps, bound.soft_cap = operation.eps, operation.soft_cap
        return bound


@dataclass(frozen=True, slots=True)
class RuntimeSizes:
    """What a runtime is made for; a step may be smaller, never larger."""

    num_blocks: int
    block_size: int
    max_tokens: int
    max_sequences: int
    max_context: int
    num_threads: int


class NativeRuntime:
    """KV memory, arena and threads of one engine around a program. One thread calls it."""

    def __init__(self, program: NativeProgram, sizes: RuntimeSizes, kv_format: KvFormat) -> None:
        self._program = program.handle
        self._config = program.config
        self._kv = _native.KvMemory(program.handle, kv_format, sizes.num_blocks, sizes.block_size)
        self._pool = _native.ThreadPool(sizes.num_threads)
        self._workspace = _native.Workspace(
            program.handle, sizes.max_tokens, sizes.max_sequences, sizes.num_threads, sizes.max_context
        )

    @property
    def num_blocks(self) -> int:
        return self._kv.num_blocks

    def pin_threads(self, cpus: Sequence[int]) -> None:
        """Keep each thread on its CPU of ``cpus``, except the caller, which is left as it is; see ``cpu_affinity``.

        Raises ``ValueError`` for CPUs that this process may not use.
        """
        self._pool.pin_workers(list(cpus))

    @property
    def pool(self) -> _native.ThreadPool:
        """The threads, free for other work between calls."""
        return self._pool

    def forward(self, batch: ForwardBatch) -> BoolArray:
        """Compute a step's tokens: keys and values are written, the hidden states that are wanted kept for ``logits``.

        Says of each sequence whether everything computed for it is finite, ``[B]``.
        """
        is_finite = np.empty(batch.num_sequences, np.uint8)
        self._program.run(
            batch.input_ids,
            batch.positions,
            batch.slot_mapping,
            batch.query_start,
            batch.seq_lens,
            batch.block_tables,
            batch.num_wanted,
            batch.joined_rows,
            batch.joined_slots,
            self._kv,
            self._pool,
            self._workspace,
            is_finite,
        )
        return is_finite.view(np.bool_)

    def logits(self, rows: Int32Array) -> Float32Array:
        """Logits ``[len(rows), vocab_size]`` of wanted rows of the last ``forward``; at most ``max_sequences`` rows."""
        logits = np.empty((len(rows), self._config.vocab_size), np.float32)
        self._program.head(rows, self._pool, self._workspace, logits)
        return logits

    def hidden(self, num_rows: int) -> Float32Array:
        """Hidden states ``[num_rows, hidden_size]`` of the first wanted rows of the last ``forward``, before the final
        norm.
        """
        hidden = np.empty((num_rows, self._config.hidden_size), np.float32)
        self._program.hidden(self._workspace, hidden)
        return hidden

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block's content in all layers, an int8 cache's scales included."""
        return self._kv.block_bytes

    def host_arena(self, num_slots: int) -> NDArray[np.uint8]:
        """Memory for the content of so many blocks, ``[num_slots, block_bytes]``."""
        return np.empty((num_slots, self._kv.block_bytes), np.uint8)

    def copy_out(self, block_ids: Int32Array, contents: NDArray[np.uint8], rows: Int32Array) -> None:
        """Copy the content of block ``block_ids[i]`` to ``contents[rows[i]]``."""
        self._kv.copy_out(block_ids, contents, rows)

    def copy_in(self, block_ids: Int32Array, contents: NDArray[np.uint8], rows: Int32Array) -> None:
        """Copy ``contents[rows[i]]`` to block ``block_ids[i]``."""
        self._kv.copy_in(block_ids, contents, rows)

    def copy_blocks(self, sources: Int32Array, targets: Int32Array) -> None:
        """Copy the content of block ``sources[i]`` to block ``targets[i]``, one after the other."""
        self._kv.copy_blocks(sources, targets)

    def start_timing(self) -> None:
        """From now on add up how long each operation takes; costs two clock reads for each."""
        self._workspace.start_timing()

    def operation_seconds(self) -> list[float]:
        """Seconds of each of the listing's operations since ``start_timing``."""
        return self._workspace.operation_seconds()

    def clear_slots(self, slots: Int32Array) -> None:
        """Zero what slots hold in every layer."""
        self._kv.clear_slots(slots)
