"""A tuning changes how fast a product is and never a bit of it; the search finds the fastest within its time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.native import _native, tuning
from headrace.native.host import Host, this_host
from headrace.native.operations import WeightFormat
from headrace.native.packing import PackedWeight
from headrace.native.program import NativeProgram
from headrace.native.tuning import (
    ROW_CLASSES,
    MatmulTuning,
    MatrixShape,
    TunedClass,
    TunedShape,
    TuningTable,
    default_table,
    default_tunings,
    tune,
)
from tests.fakes import ManualClock
from tests.native.configs import SHAPES, random_matrices, random_vectors
from tests.native.native_run import NativeRun

KERNELS = [
    name for name in ("portable", "avx2", "avx512", "avx512_bf16") if name in {"portable", _native.best_kernels()}
]


def packed(weight_format: WeightFormat, num_rows: int, num_columns: int) -> PackedWeight:
    rng = np.random.default_rng(3)
    values = rng.normal(0.0, 1.0, (num_rows, num_columns)).astype(np.float32)
    matrix = PackedWeight.empty(weight_format, num_rows, num_columns)
    matrix.put_floats(0, values)
    return matrix


def product(
    matrix: PackedWeight, x: np.ndarray, choice: MatmulTuning, threads: int = 1, kernels: str = ""
) -> np.ndarray:
    out = np.full((len(x), matrix.num_rows), np.nan, np.float32)
    arguments = [(int(matrix.format), matrix.num_rows, matrix.num_columns, matrix.data)]
    _native.time_products(arguments, x, choice.numbers, _native.ThreadPool(threads), out, 1, kernels)
    return out


def variants(kernels: str) -> list[MatmulTuning]:
    most = _native.max_tile_rows(kernels)
    tiles = [(rows, panels + 1) for panels, limit in enumerate(most) for rows in range(1, limit + 1)]
    cuts = [(1, 0), (7, 1 << 12), (64, 1 << 20)]
    return [MatmulTuning(rows, panels, *cut) for (rows, panels), cut in itertools.product(tiles, cuts)]


def test_the_row_classes_are_those_of_the_kernels() -> None:
    assert _native.row_class_ends() == [1, 8, 32]
    assert ROW_CLASSES == ("1", "2-8", "9-32", "33+")
    for kernels in KERNELS:
        assert len(default_tunings(kernels)) == len(ROW_CLASSES)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("weight_format", [WeightFormat.F32, WeightFormat.BF16, WeightFormat.INT8, WeightFormat.INT4])
def test_no_tuning_changes_a_bit(weight_format: WeightFormat, kernels: str) -> None:
    matrix = packed(weight_format, 83, 70)
    for num_rows in (1, 5, 19):
        x = np.random.default_rng(num_rows).normal(0.0, 1.0, (num_rows, 70)).astype(np.float32)
        expected = product(matrix, x, MatmulTuning(1, 1, 1 << 16, 0), kernels=kernels)
        assert np.isfinite(expected).all()
        for choice in variants(kernels):
            for threads in (1, 2):
                assert np.array_equal(product(matrix, x, choice, threads, kernels), expected), (choice, num_rows)


@pytest.mark.parametrize("weight_format", [WeightFormat.F32, WeightFormat.INT4])
def test_a_tuned_program_computes_the_same_bits(weight_format: WeightFormat) -> None:
    config = SHAPES["llama"]
    matrices, vectors = random_matrices(config, weight_format), random_vectors(config)
    odd = [variants("")[i] for i in (2, 10, 13, -1)]
    classes = tuple(TunedClass(choice, 1) for choice in odd)
    shapes = dict.fromkeys(map(MatrixShape.of, matrices.values()))
    table = TuningTable(
        host=this_host(),
        threads=1,
        shapes=tuple(TunedShape(shape, classes) for shape in shapes),  # type: ignore[arg-type]
    )
    chunks = {0: list(range(40)), 1: [5], 2: [9, 8, 7, 6, 5]}
    plain = NativeRun(NativeProgram.build(config, matrices, vectors)).step(chunks)
    tuned = NativeRun(NativeProgram.build(config, matrices, vectors, tuning=table)).step(chunks)
    for seq_id, logits in plain.items():
        assert np.array_equal(logits, tuned[seq_id])


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        (MatmulTuning(0, 1, 128, 0), "tile_rows"),
        (MatmulTuning(99, 1, 128, 0), "tile_rows"),
        (MatmulTuning(4, 0, 128, 0), "tile_panels"),
        (MatmulTuning(4, 3, 128, 0), "tile_panels"),
        (MatmulTuning(4, 1, 0, 0), "block_rows"),
        (MatmulTuning(4, 1, 1 << 20, 0), "block_rows"),
        (MatmulTuning(4, 1, 128, -1), "piece_bytes"),
        (MatmulTuning(4, 1, 128, 1 << 30), "piece_bytes"),
    ],
)
def test_a_tuning_out_of_bounds_is_refused_by_name(choice: MatmulTuning, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is .* must be between"):
        product(packed(WeightFormat.F32, 16, 32), np.zeros((1, 32), np.float32), choice)
    config = SHAPES["llama"]
    matrices, vectors = random_matrices(config, WeightFormat.F32), random_vectors(config)
    classes = (TunedClass(choice, 1),) * 4
    shapes = tuple(TunedShape(shape, classes) for shape in dict.fromkeys(map(MatrixShape.of, matrices.values())))
    table = TuningTable(host=this_host(), threads=1, shapes=shapes)
    with pytest.raises(ValueError, match=field):
        NativeProgram.build(config, matrices, vectors, tuning=table)


@settings(max_examples=40, deadline=None)
@given(numbers=st.tuples(*[st.integers(-(2**40), 2**40)] * 4))
def test_any_numbers_are_taken_or_refused(numbers: tuple[int, int, int, int]) -> None:
    try:
        product(packed(WeightFormat.INT8, 20, 40), np.ones((3, 40), np.float32), MatmulTuning(*numbers))
    except (ValueError, TypeError, OverflowError):
        return
    assert 1 <= numbers[0] <= 8
    assert 1 <= numbers[1] <= 2


def test_what_does_not_fit_a_product_is_refused() -> None:
    pool, choice = _native.ThreadPool(1), default_tunings("portable")[0].numbers
    matrix = packed(WeightFormat.F32, 16, 32)
    good = (0, 16, 32, matrix.data)
    x, out = np.zeros((2, 32), np.float32), np.zeros((2, 16), np.float32)
    wrong: Sequence[tuple[list[object], np.ndarray, np.ndarray, int, str, str]] = [
        ([], x, out, 1, "", "there must be a matrix"),
        ([(9, 16, 32, matrix.data)], x, out, 1, "", "no such weight format"),
        ([(0, 0, 32, matrix.data)], x, out, 1, "", "no rows"),
        ([(0, 16, 33, matrix.data)], x, out, 1, "", "as many columns"),
        ([(0, 16, 32, matrix.data[:-1])], x, out, 1, "", "fewer bytes"),
        ([good, (1, 16, 32, matrix.data)], x, out, 1, "", "one format"),
        ([good], x, out[:1], 1, "", "as many rows"),
        ([good], x, out, 0, "", "rounds"),
        ([good], x, out, 1, "no-such", "kernels"),
    ]
    for matrices, inputs, outputs, rounds, kernels, message in wrong:
        with pytest.raises(ValueError, match=message):
            _native.time_products(matrices, inputs, choice, pool, outputs, rounds, kernels)  # type: ignore[arg-type]


class FakeTimes:
    """Products whose time is a function of their tuning, on a clock that they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, favourite: MatmulTuning, cost: float = 1e-4) -> None:
        self.clock = ManualClock()
        self.num_calls = 0
        self._favourite = favourite
        self._cost = cost
        monkeypatch.setattr(tuning._native, "time_products", self.time_products)

    def time_products(
        self, matrices: list[object], x: object, choice: tuple[int, ...], pool: object, out: object, *rest: object
    ) -> list[float]:
        self.num_calls += 1
        num_wrong = sum(a != b for a, b in zip(choice, self._favourite.numbers, strict=True))
        seconds = self._cost * (1 + num_wrong) * len(matrices)
        self.clock.advance(seconds)
        return [seconds]


def test_the_search_finds_the_fastest_variant_of_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    favourite = MatmulTuning(4, 1, 64, 24 << 10)
    times = FakeTimes(monkeypatch, favourite)
    matrices = {"a": packed(WeightFormat.INT4, 64, 64), "b": packed(WeightFormat.INT8, 32, 64)}
    table = tune(matrices, this_host(), 1, budget_s=10.0, clock=times.clock.now)
    assert table.is_whole
    assert {entry.shape for entry in table.shapes} == {MatrixShape.of(matrix) for matrix in matrices.values()}
    for entry in table.shapes:
        for row_class, chosen in zip(ROW_CLASSES, entry.classes, strict=True):
            assert chosen.tuning.piece_bytes == favourite.piece_bytes
            assert chosen.tuning.tile_panels == 1
            assert row_class == "1" or chosen.tuning.tile_rows == favourite.tile_rows
            assert row_class != "33+" or chosen.tuning == favourite
            assert 0 < chosen.seconds < chosen.default_seconds
            assert chosen.num_variants > 4


def test_the_search_ends_in_time_and_keeps_the_default_where_there_was_none(monkeypatch: pytest.MonkeyPatch) -> None:
    times = FakeTimes(monkeypatch, MatmulTuning(4, 1, 64, 24 << 10), cost=0.3)
    host = this_host()
    table = tune({"a": packed(WeightFormat.INT4, 64, 64)}, host, 1, budget_s=2.0, clock=times.clock.now)
    assert not table.is_whole
    assert times.num_calls <= 15  # beside those there is time for, one in each stage that finds none left
    (entry,) = table.shapes
    assert tuple(chosen.tuning for chosen in entry.classes) == default_tunings(host.kernels)
    assert all(chosen.num_variants <= 1 for chosen in entry.classes)


def test_a_gain_within_the_noise_is_no_reason_to_leave_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    host = this_host()
    monkeypatch.setattr(tuning, "_LEAST_GAIN", 0.9)
    times = FakeTimes(monkeypatch, MatmulTuning(4, 1, 64, 24 << 10))
    table = tune({"a": packed(WeightFormat.INT4, 64, 64)}, host, 1, budget_s=10.0, clock=times.clock.now)
    assert table.tunings(table.shapes[0].shape) == default_tunings(host.kernels)


def test_a_real_search_measures_and_is_read_back_as_it_was() -> None:
    matrices = {"a": packed(WeightFormat.INT4, 64, 64), "b": packed(WeightFormat.F32, 40, 64)}
    table = tune(matrices, this_host(), 1, budget_s=0.2)
    assert msgspec.json.decode(msgspec.json.encode(table), type=TuningTable) == table
    for entry, matrix in zip(table.shapes, matrices.values(), strict=True):
        for chosen in entry.classes:  # each is one that the kernels take
            product(matrix, np.ones((chosen.num_rows, 64), np.float32), chosen.tuning)


def test_a_table_holds_for_its_machine_build_and_threads_only() -> None:
    host = this_host()
    table = default_table([MatrixShape(WeightFormat.INT4, 64, 64)], host, 2)
    assert table.fits(host, 2)
    assert not table.fits(host, 1)
    for field in ("cpu", "kernels", "build"):
        assert not table.fits(msgspec.structs.replace(host, **{field: "other"}), 2)
    assert table.tunings(MatrixShape(WeightFormat.INT8, 64, 64)) is None


def test_the_host_is_named_even_where_the_system_does_not(tmp_path: Path) -> None:
    host = this_host()
    assert host.kernels == _native.best_kernels()
    assert len(host.build) == 16
    assert host == this_host()
    cpuinfo = tmp_path / "cpuinfo"
    assert isinstance(this_host(cpuinfo), Host)
    cpuinfo.write_text("processor : 0\nmodel name\t: Some CPU\n\nprocessor : 1\nmodel name\t: Other\n")
    assert this_host(cpuinfo).cpu == "Some CPU"
