"""A compiled program computes the model it was made from, however its tokens arrive, and says what does not fit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from headrace.core.model_config import ModelConfig
from headrace.core.step import JoinedTokens, ScheduledSequence, StepPlan
from headrace.executor.native_executor import NativeExecutor
from headrace.native import _native
from headrace.native.operations import KvFormat, WeightFormat
from headrace.native.packing import PackedWeight
from headrace.native.program import NativeProgram, NativeRuntime, RuntimeSizes
from tests.native.configs import SHAPES, random_matrices, random_vectors
from tests.native.naive_model import naive_hidden, naive_logits
from tests.native.native_run import BLOCK_SIZE, NativeRun

TOKENS = np.random.default_rng(0).integers(0, 67, 45).tolist()
OTHERS = np.random.default_rng(1).integers(0, 67, 31).tolist()


def available_kernels() -> list[str]:
    """The instruction sets this machine can run."""
    found = []
    for name in ("portable", "avx2", "avx512", "avx512_bf16"):
        with suppress(ValueError):
            _native.SamplingWorkspace(8, 1, name)
            found.append(name)
    return found


def build(config: ModelConfig, weight_format: WeightFormat = WeightFormat.F32, kernels: str = "") -> NativeProgram:
    return NativeProgram.build(config, random_matrices(config, weight_format), random_vectors(config), kernels)


def widened(config: ModelConfig, weight_format: WeightFormat = WeightFormat.F32) -> dict[str, np.ndarray]:
    """The same weights in float64, as they are after packing."""
    matrices = random_matrices(config, weight_format)
    rows = {name: np.stack([m.row(i) for i in range(m.num_rows)]) for name, m in matrices.items()}
    return {name: values.astype(np.float64) for name, values in (rows | random_vectors(config)).items()}


def assert_close(ours: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("name", SHAPES)
def test_a_program_computes_what_the_facts_say(name, kernels) -> None:
    config = SHAPES[name]
    program = build(config, kernels=kernels)
    expected = naive_hidden(config, widened(config), TOKENS)
    run = NativeRun(program)
    assert_close(run.hidden({0: TOKENS})[0], expected, 1e-5)
    assert_close(run.step({1: TOKENS})[1], naive_logits(config, widened(config), expected), 1e-5)


@pytest.mark.parametrize("weight_format", [f for f in WeightFormat if f is not WeightFormat.INT4_WIDE])
@pytest.mark.parametrize("kv_format", KvFormat)
def test_every_weight_and_cache_format_is_close_to_the_same_weights_in_float64(weight_format, kv_format) -> None:
    config = SHAPES["norms around"]
    weights = widened(config, weight_format)
    expected = naive_logits(config, weights, naive_hidden(config, weights, TOKENS))
    tolerance = (
        0.05 * weight_format.is_quantized + {"F32": 1e-5, "F16": 2e-3, "BF16": 0.02, "INT8": 0.05}[kv_format.name]
    )
    assert_close(NativeRun(build(config, weight_format), kv_format).step({0: TOKENS})[0], expected, tolerance)


@pytest.mark.parametrize("weight_format", [WeightFormat.F32, WeightFormat.INT4])
def test_bits_do_not_depend_on_chunks_company_or_threads(weight_format) -> None:
    program = build(SHAPES["norms around"], weight_format)
    expected = NativeRun(program).step({0: TOKENS})[0]
    for num_threads in (1, 2, 3):
        run = NativeRun(program, num_threads=num_threads)
        parts = []
        for number, (start, end) in enumerate(pairwise([0, 1, 8, 9, 10, 28, 45])):
            company = {1: OTHERS[5 * number : 5 * number + 5], 7 + number: OTHERS}
            parts.append(run.step({0: TOKENS[start:end]} | company)[0])
        assert np.array_equal(np.concatenate(parts), expected)


def test_logits_of_the_same_row_are_the_same_in_any_selection() -> None:
    run = NativeRun(build(SHAPES["llama"], WeightFormat.INT8))
    expected = run.step({0: TOKENS})[0]
    for rows in ([44], [3, 3, 0], list(range(20)), [1, 0, 44, 7, 20, 21, 22, 23, 24]):
        assert np.array_equal(run.runtime.logits(np.array(rows, np.int32)), expected[rows])
    assert run.runtime.logits(np.array([], np.int32)).shape == (0, 67)


def with_broken_embedding(config: ModelConfig, token_id: int) -> NativeProgram:
    """The model with a NaN in one token's embedding."""
    matrices = random_matrices(config, WeightFormat.F32)
    table = np.stack([matrices["embedding"].row(i) for i in range(config.vocab_size)])
    table[token_id, 3] = np.nan
    matrices["embedding"].put_floats(0, table)
    return NativeProgram.build(config, matrices, random_vectors(config))


def test_a_sequence_that_goes_wrong_says_so_and_disturbs_no_other() -> None:
    program = with_broken_embedding(SHAPES["llama"], token_id=5)
    good = [token if token != 5 else 6 for token in TOKENS]
    expected = NativeRun(program).step({0: good})[0]
    run = NativeRun(program)
    logits = run.step({1: [1, 5, 2], 0: good})
    assert run.is_finite == {0: True, 1: False}
    assert np.array_equal(logits[0], expected)
    assert np.isnan(logits[1][1:]).all()


@pytest.mark.parametrize("kv_format", KvFormat)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sequence_begins_with_what_the_same_step_computes_for_others(shape: str, kv_format: KvFormat) -> None:
    program = build(SHAPES[shape])
    alone = NativeRun(program, kv_format)
    expected = alone.step({0: [*TOKENS[:19], 3, 4]})[0][18:]
    more = alone.step({0: [8]})[0]
    run = NativeRun(program, kv_format, num_threads=2)
    run.join(1, JoinedTokens(0, 0, 17))
    run.join(2, JoinedTokens(0, 0, 17), JoinedTokens(1, 17, 18))
    logits = run.step({0: [*TOKENS[:17], 9], 1: [*TOKENS[17:18], 7], 2: [*TOKENS[18:19], 3, 4]})
    assert np.array_equal(logits[2], expected)
    assert np.array_equal(run.step({0: [5], 2: [8], 1: [6]})[2], more)


@pytest.mark.parametrize("kv_format", KvFormat)
def test_cleared_slots_hold_no_nan_for_those_who_look_at_them_later(kv_format) -> None:
    run = NativeRun(with_broken_embedding(SHAPES["llama"], token_id=5), kv_format)
    run.step({0: [5, 5, 5]})
    broken_slots = run.slots[0]
    run.step({0: [7]})
    assert run.is_finite == {0: False}
    run.runtime.clear_slots(np.concatenate([broken_slots, run.slots[0]]))
    run.step({0: [7]})
    assert run.is_finite == {0: True}


def test_what_was_joined_is_cleared_with_the_sequence_that_went_wrong() -> None:
    program = with_broken_embedding(SHAPES["llama"], token_id=5)
    executor = NativeExecutor(program, RuntimeSizes(4, BLOCK_SIZE, 64, 4, 64, 1), KvFormat.F32)
    first = ScheduledSequence(0, [1, 5, 2], 0, np.array([1], np.int32))
    second = ScheduledSequence(1, [7], 2, np.array([3], np.int32), joined=(JoinedTokens(0, 0, 2),))
    result = executor.execute(StepPlan(1, (first, second)), None)
    assert set(result.failed) == {0, 1}
    contents = executor.block_memory.host_arena(4)
    executor.block_memory.copy_out(np.arange(4, dtype=np.int32), contents, np.arange(4, dtype=np.int32))
    assert np.isfinite(contents.view(np.float32)).all()


def test_slots_are_cleared_all_or_none() -> None:
    run = NativeRun(build(SHAPES["llama"]))
    run.step({0: TOKENS[:20]})
    block = run.slots[0][0] // BLOCK_SIZE
    before = run.runtime.host_arena(1)
    run.runtime.copy_out(np.array([block], np.int32), before, np.array([0], np.int32))
    with pytest.raises(ValueError, match="out of bounds"):
        run.runtime.clear_slots(np.array([run.slots[0][0], 1 << 20], np.int32))
    after = run.runtime.host_arena(1)
    run.runtime.copy_out(np.array([block], np.int32), after, np.array([0], np.int32))
    assert np.array_equal(before, after)


def test_the_arena_holds_a_programs_buffers_without_overlap() -> None:
    program = build(SHAPES["norms around"], WeightFormat.INT8)
    assert program.arena.row_bytes < sum(buffer.row_bytes for buffer in program.listing.buffers)


# ---- refusals ----------------------------------------------------------------------------------------


def sizes(**changed: int) -> RuntimeSizes:
    base = {
        "num_blocks": 4,
        "block_size": 16,
        "max_tokens": 32,
        "max_sequences": 4,
        "max_context": 64,
        "num_threads": 1,
    }
    return RuntimeSizes(**base | changed)


@pytest.mark.parametrize(
    "field", ["num_blocks", "block_size", "max_tokens", "max_sequences", "max_context", "num_threads"]
)
@pytest.mark.parametrize("value", [0, -1, -(2**31)])
def test_a_runtime_of_no_size_is_refused(field, value) -> None:
    with pytest.raises(ValueError, match=r"must be|between"):
        NativeRuntime(build(SHAPES["llama"]), sizes(**{field: value}), KvFormat.F32)


@pytest.mark.parametrize(
    "changed", [{"block_size": 24}, {"block_size": 8}, {"max_sequences": 33}, {"num_threads": 1025}]
)
def test_a_runtime_of_impossible_sizes_is_refused(changed) -> None:
    with pytest.raises(ValueError, match=r"must be|max_sequences"):
        NativeRuntime(build(SHAPES["llama"]), sizes(**changed), KvFormat.F32)


def test_a_head_dimension_the_kernels_cannot_take_is_refused_with_its_value() -> None:
    with pytest.raises(ValueError, match="head_dim is 24 but must be a multiple of 16"):
        build(replace(SHAPES["llama"], head_dim=24))


def test_weights_of_the_wrong_shape_are_refused() -> None:
    config = SHAPES["llama"]
    vectors = random_vectors(config)
    for name in ("layers.0.qkv", "layers.1.down", "head", "embedding"):
        matrices = random_matrices(config, WeightFormat.F32)
        matrices[name] = PackedWeight.empty(WeightFormat.F32, matrices[name].num_rows + 1, matrices[name].num_columns)
        with pytest.raises(ValueError, match="matrix"):
            NativeProgram.build(config, matrices, vectors)
    for name in ("final_norm", "layers.0.attention_norm"):
        with pytest.raises(ValueError, match="vector"):
            NativeProgram.build(
                config, random_matrices(config, WeightFormat.F32), vectors | {name: np.ones(3, np.float32)}
            )


def test_kernels_are_chosen_by_name_and_unknown_ones_refused() -> None:
    assert build(SHAPES["llama"], kernels="portable").kernels == "portable"
    assert build(SHAPES["llama"]).kernels == _native.best_kernels()
    with pytest.raises(ValueError, match="kernels"):
        build(SHAPES["llama"], kernels="sse9")


def test_operations_are_timed_from_when_it_is_asked_for() -> None:
    program = build(next(iter(SHAPES.values())))
    run = NativeRun(program)
    run.step({0: TOKENS[:5]})
    assert run.runtime.operation_seconds() == []
    run.runtime.start_timing()
    run.step({0: TOKENS[5:8]})
    seconds = run.runtime.operation_seconds()
    assert len(seconds) == len(program.listing.operations)
    assert all(s > 0.0 for s in seconds)
    run.runtime.start_timing()
    assert not any(run.runtime.operation_seconds())
