"""The native module takes what fits and answers everything else with a typed error, never with a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.native import _native
from tests.native.fuzz_binding import Fuzz

ROOT = Path(__file__).parents[2]
NUM_CALLS = 3000


@pytest.fixture(scope="module")
def fuzz() -> Fuzz:
    return Fuzz(0)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_random_wrong_call_crashes_or_harms_a_right_one(seed: int) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.native.fuzz_binding", str(seed), str(NUM_CALLS)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = {line.split(maxsplit=1)[1] for line in result.stdout.splitlines()}
    for call in ("run", "head", "hidden", "memory", "workspace", "pool", "cpus", "program", "packing"):
        assert f"{call}: ValueError" in outcomes
        assert f"{call}: TypeError" in outcomes
        assert f"{call}: taken" in outcomes


def test_right_arguments_are_taken(fuzz: Fuzz) -> None:
    batch = fuzz.batch()
    fuzz.programs[0].run(**batch)
    assert batch["is_finite"].tolist() == [1, 1, 1]
    arguments = fuzz.head_arguments()
    fuzz.programs[0].head(**arguments)
    assert np.isfinite(arguments["logits"]).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("input_ids", np.int64),
        ("positions", np.float32),
        ("slot_mapping", np.uint32),
        ("query_start", np.int64),
        ("seq_lens", np.int16),
        ("block_tables", np.int64),
        ("num_wanted", np.int64),
        ("joined_rows", np.int64),
        ("joined_slots", np.uint32),
        ("is_finite", np.int32),
    ],
)
def test_an_array_of_another_type_is_refused_and_not_converted(fuzz: Fuzz, name: str, dtype: Any) -> None:
    batch = fuzz.batch()
    batch[name] = batch[name].astype(dtype)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        fuzz.programs[0].run(**batch)


def test_an_output_that_could_not_be_written_in_place_is_refused(fuzz: Fuzz) -> None:
    frozen = np.empty((2, 67), np.float32)
    frozen.flags.writeable = False
    fuzz.programs[0].run(**fuzz.batch())
    for logits in (np.empty((2, 67)), np.empty((2, 134), np.float32)[:, ::2], np.empty((67, 2), np.float32).T, frozen):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            fuzz.programs[0].head(**fuzz.head_arguments() | {"logits": logits})


@pytest.mark.parametrize(
    ("name", "index", "value", "complaint"),
    [
        ("input_ids", 3, 67, "token id"),
        ("input_ids", 0, -1, "token id"),
        ("positions", 2, -5, "position"),
        ("slot_mapping", 7, 12 * 16, "slot"),
        ("slot_mapping", 7, -1, "slot"),
        ("block_tables", (1, 1), 12, "block id"),
        ("block_tables", (0, 0), -1, "block id"),
        ("num_wanted", 1, 10, "num_wanted"),
        ("num_wanted", 0, -1, "num_wanted"),
        ("joined_rows", 0, 15, "joined row"),
        ("joined_rows", 2, -1, "joined row"),
        ("joined_slots", 1, 12 * 16, "joined slot"),
        ("joined_slots", 1, -1, "joined slot"),
        ("query_start", 0, 1, "query_start"),
        ("query_start", 3, 14, "query_start"),
        ("query_start", 1, 15, "sequence's length"),
        ("seq_lens", 0, 33, "sequence's length"),
        ("seq_lens", 1, 8, "sequence's length"),
    ],
)
def test_a_wrong_number_is_refused_with_what_it_is(
    fuzz: Fuzz, name: str, index: Any, value: int, complaint: str
) -> None:
    batch = fuzz.batch()
    batch[name][index] = value
    with pytest.raises(ValueError, match=complaint):
        fuzz.programs[0].run(**batch)


def test_lengths_that_do_not_agree_are_refused(fuzz: Fuzz) -> None:
    for name, array in fuzz.batch().items():
        if not isinstance(array, np.ndarray):
            continue
        batch = fuzz.batch()
        batch[name] = batch[name][:-1].copy()
        with pytest.raises(ValueError, match=r"agree in length|row per sequence|query_start|out of bounds"):
            fuzz.programs[0].run(**batch)


def test_what_was_made_for_another_program_is_refused(fuzz: Fuzz) -> None:
    with pytest.raises(ValueError, match="workspace was made for another program"):
        fuzz.programs[0].run(**fuzz.batch() | {"workspace": fuzz.workspaces[1]})
    with pytest.raises(ValueError, match="workspace was made for another program"):
        fuzz.programs[1].head(**fuzz.head_arguments())
    with pytest.raises(ValueError, match="workspace was made for another program"):
        fuzz.programs[1].hidden(fuzz.workspaces[0], np.empty((1, 40), np.float32))
    with pytest.raises(ValueError, match="made for fewer threads"):
        fuzz.programs[0].run(**fuzz.batch() | {"pool": fuzz.pools[2]})


def test_matrices_outlive_the_lists_and_names_they_were_given_in() -> None:
    fuzz = Fuzz(0)
    expected = fuzz.right_logits()
    fuzz.weights.clear()
    assert np.array_equal(fuzz.right_logits(), expected)


@pytest.mark.parametrize("num_rows", [2**31 - 1, 2**24])
def test_a_matrix_larger_than_any_memory_is_refused_before_its_size_wraps_around(num_rows: int) -> None:
    with pytest.raises(ValueError, match="larger than any memory"):
        _native.packed_bytes(0, num_rows, 2**31 - 1)
