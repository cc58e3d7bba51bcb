"""Calls the native module wrongly in random ways; exits with 0 if every call returned or raised a typed error.

Run as ``python -m tests.native.fuzz_binding SEED NUM_CALLS``, in a process of its own: what it looks for is a crash.
Between the wrong calls a right one must still give the right bits.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.native import _native
from headrace.native import program as program_module
from headrace.native.operations import KvFormat, WeightFormat
from headrace.native.program import NativeProgram
from tests.native.configs import SHAPES, random_matrices, random_vectors

TYPED_ERRORS = (ValueError, TypeError, MemoryError)

HUGE = [-(2**63), -(2**31) - 1, -(2**31), -65537, -2, -1, 0, 1, 2, 3, 15, 16, 17, 255, 2**16, 2**30]
HUGE += [2**31 - 16, 2**31 - 1, 2**31, 2**40, 2**63 - 64, 2**63 - 1, 2**64]
ODDITIES = [None, "text", b"bytes", 1.5, float("nan"), [], (), {}, object(), True, -1]
DTYPES = [np.int64, np.uint32, np.int8, np.uint8, np.float32, np.float64, np.float16, np.bool_, np.complex64]
SMALL = [-1, 0, 1, 2, 3, 8, 16, 17, 32, 48, 2000, -(2**31)]

Arguments = dict[str, Any]


class RecordingModule:
    """Stands in for the native module while a program is bound, to learn what it is built from."""

    Operation = _native.Operation
    best_kernels = staticmethod(_native.best_kernels)

    def __init__(self) -> None:
        self.arguments: Arguments = {}

    def Program(self, **arguments: Any) -> _native.Program:
        self.arguments = arguments
        return _native.Program(**arguments)


class Fuzz:
    """Right arguments of every function, and ways to spoil them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.weights = {
            name: (random_matrices(SHAPES[name], chosen), random_vectors(SHAPES[name]))
            for name, chosen in (("llama", WeightFormat.INT8), ("norms around", WeightFormat.F32))
        }
        self.programs = [NativeProgram.build(SHAPES[n], m, v).handle for n, (m, v) in self.weights.items()]
        self.memories = [_native.KvMemory(p, f, 12, 16) for p, f in zip(self.programs, KvFormat, strict=False)]
        self.pools = [_native.ThreadPool(1), _native.ThreadPool(2), _native.ThreadPool(3)]
        self.workspaces = [_native.Workspace(p, 24, 6, 2, 192) for p in self.programs]
        self.expected = self.right_logits()
        self.outcomes: Counter[str] = Counter()

    # ---- right calls -----------------------------------------------------------------------------

    def batch(self) -> Arguments:
        """Three sequences over the first program: a chunk in the middle, a whole prompt, a single token."""
        counts, starts = [5, 9, 1], [16, 0, 30]
        tables = np.array([[0, 1], [2, 2], [3, 4]], np.int32)
        positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)]).astype(np.int32)
        sequence = np.repeat(np.arange(3), counts)
        return {
            "input_ids": self.rng.integers(0, 67, 15).astype(np.int32),
            "positions": positions,
            "slot_mapping": (tables[sequence, positions // 16] * 16 + positions % 16).astype(np.int32),
            "query_start": np.array([0, 5, 14, 15], np.int32),
            "seq_lens": np.array([21, 9, 31], np.int32),
            "block_tables": tables,
            "num_wanted": np.array([5, 3, 1], np.int32),
            "joined_rows": np.array([0, 5, 6], np.int32),
            "joined_slots": np.array([176, 177, 191], np.int32),
            "kv": self.memories[0],
            "pool": self.pools[1],
            "workspace": self.workspaces[0],
            "is_finite": np.empty(3, np.uint8),
        }

    def head_arguments(self, num_rows: int = 2) -> Arguments:
        return {
            "rows": np.arange(num_rows, dtype=np.int32),
            "pool": self.pools[1],
            "workspace": self.workspaces[0],
            "logits": np.empty((num_rows, 67), np.float32),
        }

    def right_logits(self) -> np.ndarray:
        """What the first program says to a fixed whole prompt."""
        ids = np.arange(10, dtype=np.int32)
        self.programs[0].run(
            ids,
            ids,
            ids + np.int32(5 * 16),
            np.array([0, 10], np.int32),
            np.array([10], np.int32),
            np.array([[5]], np.int32),
            np.array([6], np.int32),
            np.empty(0, np.int32),
            np.empty(0, np.int32),
            self.memories[0],
            self.pools[0],
            self.workspaces[0],
            np.empty(1, np.uint8),
        )
        logits = np.empty((6, 67), np.float32)
        self.programs[0].head(np.arange(4, 10, dtype=np.int32), self.pools[0], self.workspaces[0], logits)
        return logits

    # ---- spoiling --------------------------------------------------------------------------------

    def pick(self, values: list[Any]) -> Any:
        return values[self.rng.integers(len(values))]

    def spoil_array(self, array: np.ndarray) -> Any:
        """Another dtype, shape, length, order, value, or something that is no array."""
        if array.ndim == 0:
            return self.pick(ODDITIES)
        array = array.copy()
        ways: list[Callable[[], Any]] = [
            lambda: np.zeros(array.shape, self.pick(DTYPES)),
            lambda: array[:-1],
            lambda: array[1:],
            lambda: np.concatenate([array, array]),
            lambda: np.concatenate([array, array])[::2],
            lambda: array[::-1],
            lambda: array[None],
            lambda: array.reshape(-1),
            lambda: np.asfortranarray(array),
            lambda: array[:0],
            lambda: np.empty((0, 2**40), array.dtype),
            lambda: array.tolist(),
            lambda: self.pick(ODDITIES),
            lambda: np.array(3).astype(array.dtype),
            lambda: self.frozen(array),
        ]
        if array.dtype == np.int32 and array.size:
            ways += [lambda: self.with_wrong_value(array)] * 15
        return self.pick(ways)()

    def frozen(self, array: np.ndarray) -> np.ndarray:
        array.flags.writeable = False
        return array

    def with_wrong_value(self, array: np.ndarray) -> np.ndarray:
        array.reshape(-1)[self.rng.integers(array.size)] = self.pick([v for v in HUGE if -(2**31) <= v < 2**31])
        return array

    def spoil(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self.spoil_array(value)
        if type(value) is int and self.rng.random() < 0.5:
            return value + self.pick([-64, -32, -16, -1, 1, 16, 32, 64, 640, 6400])  # may well be right
        peers = {
            _native.KvMemory: self.memories,
            _native.ThreadPool: self.pools,
            _native.Workspace: self.workspaces,
            _native.Program: self.programs,
        }.get(type(value), HUGE)
        return self.pick([*peers, *peers, *ODDITIES])

    def spoil_some(self, arguments: Arguments) -> Arguments:
        arguments = dict(arguments)
        for _ in range(self.rng.integers(1, 4)):
            name = self.pick(list(arguments))
            arguments[name] = self.spoil(arguments[name])
        if self.rng.random() < 0.05:
            del arguments[self.pick(list(arguments))]
        return arguments

    # ---- wrong calls -----------------------------------------------------------------------------

    def wrong_run(self) -> None:
        self.pick(self.programs).run(**self.spoil_some(self.batch()))

    def wrong_head(self) -> None:
        self.pick(self.programs).head(**self.spoil_some(self.head_arguments()))

    def wrong_hidden(self) -> None:
        arguments = {"workspace": self.workspaces[0], "out": np.empty((self.pick([0, 1, 24, 25]), 40), np.float32)}
        self.pick(self.programs).hidden(**self.spoil_some(arguments))

    def wrong_memory(self) -> None:
        right = {"program": self.programs[0], "format": 1, "num_blocks": 2, "block_size": 16}
        memory = _native.KvMemory(**self.spoil_some(right))
        memory.clear_slots(self.spoil_array(np.array([0, 31], np.int32)))

    def wrong_workspace(self) -> None:
        right = {"program": self.programs[0], "max_tokens": 24, "max_sequences": 6, "num_threads": 2, "max_context": 64}
        arguments = right | {self.pick(list(right)[1:]): self.pick(SMALL)}
        arguments = self.spoil_some(arguments) if self.rng.random() < 0.3 else arguments
        self.run_program(self.programs[0], _native.Workspace(**arguments))

    def wrong_pool(self) -> None:
        _native.ThreadPool(self.pick([v for v in [*HUGE, *ODDITIES] if not isinstance(v, int) or not 4 < v <= 1024]))

    def wrong_cpus(self) -> None:
        cpus = [
            self.pick([*[min(os.sched_getaffinity(0))] * 40, *HUGE, *ODDITIES]) for _ in range(self.rng.integers(0, 4))
        ]
        self.pick(self.pools).pin_workers(self.pick([*[cpus] * 12, *ODDITIES]))

    def wrong_program(self) -> None:
        """A program built from spoilt parts; if it is taken, it must run."""
        name = self.pick(list(self.weights))
        recorder = RecordingModule()
        program_module._native = recorder  # type: ignore[assignment]
        try:
            NativeProgram.build(SHAPES[name], *self.weights[name])
        finally:
            program_module._native = _native
        arguments = recorder.arguments
        for _ in range(self.rng.integers(1, 3)):
            self.spoil_part(arguments)
        program = _native.Program(**arguments)
        self.run_program(program, _native.Workspace(program, 24, 6, 2, 192))

    def spoil_part(self, arguments: Arguments) -> None:
        part = self.pick(list(arguments))
        if self.rng.random() < 0.1 or not arguments[part]:
            arguments[part] = self.pick([*ODDITIES, "portable", "avx2", "sse9"])
            return
        items = list(arguments[part])
        index, other = self.rng.integers(len(items), size=2)
        if self.rng.random() < 0.1:
            del items[index]
        elif self.rng.random() < 0.3:
            items[index], items[other] = items[other], items[index]
        elif part in ("body", "tail", "head"):
            items[index] = self.spoilt_operation(items[index])
        elif isinstance(items[index], tuple):
            items[index] = self.spoilt_tuple(items[index])
        else:
            items[index] = self.spoil(items[index])
        arguments[part] = items

    def spoilt_operation(self, operation: Any) -> Any:
        if not isinstance(operation, _native.Operation):
            return operation  # spoilt before
        if self.rng.random() < 0.3:
            kind = self.pick([*range(-1, 11), 2**31 - 1])
            operation = _native.Operation(kind, self.pick([0, 1, 2]), self.pick([0, 1, -1]))
        fields = ["input", "output", "matrix", "vector", "second_vector", "layer", "rope", "window"]
        for _ in range(self.rng.integers(1, 4)):
            value = self.pick([*range(-1, 12)]) if self.rng.random() < 0.7 else self.pick([*HUGE, *ODDITIES])
            setattr(operation, self.pick(fields), value)
        setattr(operation, self.pick(["scale", "eps", "soft_cap"]), self.pick([0.0, -1.0, 1e38, float("nan")]))
        return operation

    def spoilt_tuple(self, values: tuple[Any, ...]) -> Any:
        items = list(values)
        index = self.rng.integers(len(items))
        items[index] = self.spoil(items[index])
        return self.pick([tuple(items), tuple(items), tuple(items), tuple(items[:index]), items])

    def run_program(self, program: _native.Program, workspace: _native.Workspace) -> None:
        memory = _native.KvMemory(program, 0, 12, 16)
        right = self.batch() | {"kv": memory, "workspace": workspace}
        program.run(**right)
        program.head(**self.head_arguments() | {"workspace": workspace})
        program.hidden(workspace, np.empty((15, 40), np.float32))

    def wrong_packing(self) -> None:
        packed = np.zeros(_native.packed_bytes(3, 20, 64), np.uint8)
        values = np.zeros((20, 64), np.float32)
        blocks = np.zeros(20 * 2 * 34, np.uint8)
        calls: list[tuple[Callable[..., Any], Arguments]] = [
            (_native.packed_bytes, {"format": 3, "num_rows": 20, "num_columns": 64}),
            (_native.pack_floats, {"values": values, "format": 3, "num_rows": 20, "row_begin": 0, "packed": packed}),
            (
                _native.pack_stored,
                {
                    "blocks": blocks,
                    "stored": 2,
                    "num_rows": 20,
                    "num_columns": 64,
                    "row_begin": 0,
                    "count": 20,
                    "packed": packed,
                },
            ),
            (
                _native.unpack_row,
                {"packed": packed, "format": 3, "num_rows": 20, "row": 5, "out": np.zeros(64, np.float32)},
            ),
        ]
        function, arguments = self.pick(calls)
        function(**self.spoil_some(arguments))

    def wrong_call(self) -> None:
        calls = [self.wrong_head, self.wrong_hidden, self.wrong_memory, self.wrong_workspace, self.wrong_pool]
        call = self.pick(
            [*calls, self.wrong_cpus, *[self.wrong_run] * 4, *[self.wrong_program] * 4, *[self.wrong_packing] * 2]
        )
        name = call.__name__.removeprefix("wrong_")
        try:
            call()
            self.outcomes[f"{name}: taken"] += 1
        except TYPED_ERRORS as error:
            self.outcomes[f"{name}: {type(error).__name__}"] += 1


def main() -> int:
    fuzz = Fuzz(int(sys.argv[1]))
    for number in range(int(sys.argv[2])):
        fuzz.wrong_call()
        if number % 50 == 0 and not np.array_equal(fuzz.right_logits(), fuzz.expected):
            print("a wrong call changed what a right one gives")
            return 1
    for outcome, count in sorted(fuzz.outcomes.items()):
        print(f"{count:6} {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
