"""How matrix products are cut up, and the measuring that finds out what is fastest on this machine.

A tuning decides speed alone: results have the same bits whatever it is. Owns the search and the table of what it
found; does not know where tables are kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.native import _native
from headrace.native.host import Host
from headrace.native.operations import WeightFormat
from headrace.native.packing import PANEL_ROWS, PackedWeight

Clock = Callable[[], float]

ROW_CLASSES = ("1", "2-8", "9-32", "33+")
"""Numbers of rows (tokens of a step) that share a tuning, as ``csrc/ops/matmul.h`` divides them."""

_ROWS_TIMED = (1, 8, 16, 128)
_MANY_ROWS = 3  # the only class whose rows do not fit one block

_PIECE_BYTES = (24 << 10, 48 << 10, 96 << 10, 192 << 10)
_BLOCK_ROWS = (64, 128, 256, 512)
_TILE_ROWS = {1: (4, 6, 8), 2: (4, 6)}

# A variant must be faster by this much to be preferred to the default: less is noise.
_LEAST_GAIN = 0.03
_MIN_ROUNDS, _MAX_ROUNDS = 3, 12
# Weights are timed as a step meets them: in main memory, because all the others came in between.
_COLD_BYTES = 64 << 20
# Of a product that is timed; of a larger matrix only the first rows are taken.
_MAX_PRODUCT_MACS = 1 << 29


class MatmulTuning(msgspec.Struct, frozen=True, array_like=True):
    """How a product is cut up; the fields are those of ``csrc/ops/matmul.h``."""

    tile_rows: int
    tile_panels: int
    block_rows: int
    piece_bytes: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return (self.tile_rows, self.tile_panels, self.block_rows, self.piece_bytes)

    def __str__(self) -> str:
        """``tile 6x32, piece 24 KiB, block 128``: rows by outputs, bytes of weights, rows."""
        tile = f"{self.tile_rows}x{self.tile_panels * PANEL_ROWS}"
        return f"tile {tile}, piece {self.piece_bytes >> 10} KiB, block {self.block_rows}"


class MatrixShape(msgspec.Struct, frozen=True, array_like=True):
    """What products of one speed have in common."""

    format: WeightFormat
    num_rows: int
    num_columns: int

    @classmethod
    def of(cls, matrix: PackedWeight) -> MatrixShape:
        return cls(matrix.format, matrix.num_rows, matrix.num_columns)

    def __str__(self) -> str:
        return f"{self.format.label} {self.num_rows}x{self.num_columns}"


class TunedClass(msgspec.Struct, frozen=True):
    """What was chosen for one row class of one shape.

    Times are seconds of one product of ``num_rows`` rows (of the first ``num_outputs`` outputs); 0 where nothing
    was measured.
    """

    tuning: MatmulTuning
    num_rows: int
    num_outputs: int = 0
    seconds: float = 0.0
    default_seconds: float = 0.0
    num_variants: int = 1


class TunedShape(msgspec.Struct, frozen=True):
    """The choices for one shape, by row class."""

    shape: MatrixShape
    classes: tuple[TunedClass, TunedClass, TunedClass, TunedClass]


class TuningTable(msgspec.Struct, frozen=True, kw_only=True):
    """Choices by shape, with the machine, build and number of threads they were measured with.

    ``is_whole`` says that there was time to compare all variants.
    """

    host: Host
    threads: int
    shapes: tuple[TunedShape, ...]
    seconds: float = 0.0
    is_whole: bool = True

    def tunings(self, shape: MatrixShape) -> tuple[MatmulTuning, ...] | None:
        """The tuning of each row class, or ``None`` for a shape that is not in the table."""
        return next((tuple(c.tuning for c in each.classes) for each in self.shapes if each.shape == shape), None)

    def fits(self, host: Host, threads: int) -> bool:
        """Whether it was measured on such a machine, with this build and as many threads."""
        return self.host == host and self.threads == threads


def default_tunings(kernels: str) -> tuple[MatmulTuning, ...]:
    """What ``kernels`` propose unmeasured, by row class."""
    return tuple(MatmulTuning(*numbers) for numbers in _native.default_tunings(kernels))


def default_table(shapes: Iterable[MatrixShape], host: Host, threads: int) -> TuningTable:
    """The table of a machine on which nothing was measured."""
    tunings = default_tunings(host.kernels)
    classes = tuple(TunedClass(tuning, rows) for tuning, rows in zip(tunings, _ROWS_TIMED, strict=True))
    return TuningTable(host=host, threads=threads, shapes=tuple(TunedShape(s, classes) for s in _distinct(shapes)))  # type: ignore[arg-type]


def tune(
    matrices: Mapping[str, PackedWeight],
    host: Host,
    threads: int,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> TuningTable:
    """Time the variants of each distinct shape among ``matrices`` in at most ``budget_s`` seconds, or little more.

    ``matrices`` are those that are multiplied with. Takes ``threads`` threads for as long as it runs. Where the
    machine is too busy to compare variants in that time, the kernels' own proposal is kept.
    """
    started = clock()
    by_shape: dict[MatrixShape, list[PackedWeight]] = {}
    for matrix in matrices.values():
        by_shape.setdefault(MatrixShape.of(matrix), []).append(matrix)
    pool = _native.ThreadPool(threads)
    classes: dict[MatrixShape, list[TunedClass]] = {shape: [] for shape in by_shape}
    is_whole = True
    for row_class in range(len(ROW_CLASSES)):
        deadline = started + budget_s * (row_class + 1) / len(ROW_CLASSES)
        search = _Search(by_shape, row_class, host.kernels, pool, clock)
        is_whole = search.run(deadline) and is_whole
        for shape in by_shape:
            classes[shape].append(search.result(shape))
    shapes = tuple(TunedShape(shape, tuple(chosen)) for shape, chosen in classes.items())  # type: ignore[arg-type]
    return TuningTable(host=host, threads=threads, shapes=shapes, seconds=clock() - started, is_whole=is_whole)


@dataclass(slots=True)
class _Candidate:
    """A variant with what its products took."""

    tuning: MatmulTuning
    seconds: list[float] = field(default_factory=list)

    @property
    def is_timed(self) -> bool:
        return len(self.seconds) >= _MIN_ROUNDS

    @property
    def estimate(self) -> float:
        """A low quantile: what others do on the machine only ever adds."""
        return float(np.quantile(self.seconds, 0.25))


class _Search:
    """Finds the best variant of one row class, one knob after the other, all shapes side by side."""

    def __init__(
        self,
        by_shape: Mapping[MatrixShape, Sequence[PackedWeight]],
        row_class: int,
        kernels: str,
        pool: _native.ThreadPool,
        clock: Clock,
    ) -> None:
        self._row_class = row_class
        self._num_rows = _ROWS_TIMED[row_class]
        self._kernels = kernels
        self._clock = clock
        default = default_tunings(kernels)[row_class]
        self._tried = {shape: {default: _Candidate(default)} for shape in by_shape}
        self._default = default
        self._timers = {shape: _Timer(matrices, self._num_rows, kernels, pool) for shape, matrices in by_shape.items()}

    def run(self, deadline: float) -> bool:
        """Search until ``deadline``; says whether that was long enough."""
        stages = [self._tiles, self._pieces, *([self._blocks] if self._row_class == _MANY_ROWS else [])]
        is_whole = True
        for index, stage in enumerate(stages):
            left = deadline - self._clock()
            is_whole = self._compare(stage, self._clock() + left / (len(stages) - index)) and is_whole
        return is_whole

    def result(self, shape: MatrixShape) -> TunedClass:
        default, best = self._tried[shape][self._default], self._best(shape)
        timer = self._timers[shape]
        if not default.is_timed:
            return TunedClass(self._default, self._num_rows)
        return TunedClass(
            best.tuning,
            self._num_rows,
            timer.num_outputs,
            best.estimate,
            default.estimate,
            sum(candidate.is_timed for candidate in self._tried[shape].values()),
        )

    def _best(self, shape: MatrixShape) -> _Candidate:
        default = self._tried[shape][self._default]
        if not default.is_timed:
            return default
        timed = [candidate for candidate in self._tried[shape].values() if candidate.is_timed]
        fastest = min(timed, key=lambda candidate: candidate.estimate)
        return fastest if fastest.estimate < (1 - _LEAST_GAIN) * default.estimate else default

    def _tiles(self, best: MatmulTuning) -> list[MatmulTuning]:
        max_rows = _native.max_tile_rows(self._kernels)
        return [
            MatmulTuning(rows, panels, best.block_rows, best.piece_bytes)
            for panels, choices in _TILE_ROWS.items()
            # a single row has tiles of one row, whatever they may be at most
            for rows in [r for r in choices if r <= max_rows[panels - 1]][-1 if self._num_rows == 1 else None :]
        ]

    def _pieces(self, best: MatmulTuning) -> list[MatmulTuning]:
        return [MatmulTuning(best.tile_rows, best.tile_panels, best.block_rows, size) for size in _PIECE_BYTES]

    def _blocks(self, best: MatmulTuning) -> list[MatmulTuning]:
        return [MatmulTuning(best.tile_rows, best.tile_panels, rows, best.piece_bytes) for rows in _BLOCK_ROWS]

    def _compare(self, stage: Callable[[MatmulTuning], list[MatmulTuning]], deadline: float) -> bool:
        """Time what ``stage`` makes of each shape's best so far, in rounds, so that noise hits all alike.

        Says whether there was time for the least number of rounds.
        """
        rivals: dict[MatrixShape, list[_Candidate]] = {}
        for shape, tried in self._tried.items():
            tunings = dict.fromkeys([self._best(shape).tuning, *stage(self._best(shape).tuning)])
            rivals[shape] = [tried.setdefault(tuning, _Candidate(tuning)) for tuning in tunings]
        for round_number in range(_MAX_ROUNDS):
            started = self._clock()
            # shape after shape, so that a shape's weights have left the caches when their turn comes again
            for abreast in itertools.zip_longest(*rivals.values()):
                for timer, candidate in zip(self._timers.values(), abreast, strict=True):
                    if candidate is not None:
                        candidate.seconds.append(timer.seconds(candidate.tuning))
                    if self._clock() > deadline:
                        return round_number >= _MIN_ROUNDS
            if 2 * self._clock() - started > deadline:  # another round would not fit
                return round_number + 1 >= _MIN_ROUNDS
        return True


class _Timer:
    """Times products of one shape: several matrices in turn, so that each comes from memory."""

    def __init__(self, matrices: Sequence[PackedWeight], num_rows: int, kernels: str, pool: _native.ThreadPool) -> None:
        first = matrices[0]
        most = max(1, _MAX_PRODUCT_MACS // (num_rows * first.num_columns)) if num_rows > 1 else first.num_rows
        self.num_outputs = min(first.num_rows, -(-most // 16) * 16)
        parts = [matrix.first_rows(self.num_outputs) for matrix in matrices]
        # few rows wait for memory; with many, the first matrix is as good as all
        num_needed = -(-_COLD_BYTES // parts[0].data.nbytes) if num_rows < _ROWS_TIMED[_MANY_ROWS] else 1
        self._matrices = [(int(p.format), p.num_rows, p.num_columns, p.data) for p in parts[:num_needed]]
        rng = np.random.default_rng(0)
        self._x = rng.standard_normal((num_rows, first.num_columns), np.float32)
        self._out = np.empty((num_rows, self.num_outputs), np.float32)
        self._kernels = kernels
        self._pool = pool

    def seconds(self, tuning: MatmulTuning) -> float:
        """Of one product, averaged over the matrices."""
        (total,) = _native.time_products(
            self._matrices, self._x, tuning.numbers, self._pool, self._out, 1, self._kernels
        )
        return total / len(self._matrices)


def _distinct(shapes: Iterable[MatrixShape]) -> list[MatrixShape]:
    return list(dict.fromkeys(shapes))
