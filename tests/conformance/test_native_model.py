"""The native program computes what the torch reference computes from the same file, however the tokens arrive."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.reference import resolve_model
from headrace.core.model_config import ModelConfig
from headrace.core.progress import NullProgress
from headrace.engine.tokenizer import load_tokenizer
from headrace.executor.native_weights import PackedModel, WeightChoice, pack_model
from headrace.model.config_parser import parse_model_config
from headrace.model.transformer import Transformer
from headrace.model.weights import load_weights
from headrace.native.operations import KvFormat, WeightFormat
from headrace.native.packing import PackedWeight
from headrace.native.program import NativeProgram
from tests.conformance.test_real_models import PROMPTS, greedy_together
from tests.model.paged_run import PagedRun
from tests.model.tiny_families import FAMILY_CASES, VOCAB_SIZE, WINDOW, make_model, save_model
from tests.model.tiny_gguf import write_gguf
from tests.native.native_run import NativeRun

FIRST = np.random.default_rng(1).integers(3, VOCAB_SIZE, 45).tolist()
SECOND = np.random.default_rng(2).integers(3, VOCAB_SIZE, 31).tolist()
LONG = np.random.default_rng(3).integers(3, VOCAB_SIZE, 200).tolist()

TOLERANCE = 1e-4
"""Largest error of a logit, relative to the largest logit."""

ROOT = Path(__file__).parents[2]


class Pair:
    """One file, loaded by both backends in float32."""

    def __init__(self, path: Path) -> None:
        self.checkpoint = open_checkpoint(path)
        self.config = parse_model_config(self.checkpoint)
        self.weights = load_weights(self.checkpoint, self.config, torch.float32, lambda done, total: None)
        self.packed = pack_model(self.checkpoint, self.config, WeightChoice.F32, 1, lambda done, total: None)

    def torch_run(self, num_layers: int | None = None) -> PagedRun:
        config = first_layers(self.config, num_layers)
        return PagedRun(Transformer(config, self.weights), config)

    def native_run(self, num_layers: int | None = None, num_threads: int = 1) -> NativeRun:
        config = first_layers(self.config, num_layers)
        return NativeRun(
            NativeProgram.build(config, self.packed.matrices, self.packed.vectors), num_threads=num_threads
        )


def first_layers(config: ModelConfig, num_layers: int | None) -> ModelConfig:
    return dataclasses.replace(config, layers=config.layers[:num_layers])


@pytest.fixture(scope="module", params=FAMILY_CASES)
def pair(request, tmp_path_factory) -> Pair:
    torch.set_num_threads(1)
    return Pair(save_model(make_model(request.param), tmp_path_factory.mktemp("model")))


def assert_close(ours: NDArray[np.float32], theirs: torch.Tensor) -> None:
    expected = theirs.numpy()
    assert ours.shape == expected.shape
    assert np.abs(expected).max() > 0.5, "the reference says nothing worth comparing"
    assert np.abs(ours - expected).max() < TOLERANCE * np.abs(expected).max()


def test_a_whole_prompt_gives_the_reference_logits(pair: Pair) -> None:
    assert_close(pair.native_run().step({0: FIRST})[0], pair.torch_run().step({0: FIRST})[0])


def test_after_every_layer_both_are_equal(pair: Pair) -> None:
    for num_layers in range(1, pair.config.num_layers + 1):
        expected = pair.torch_run(num_layers).step({0: FIRST})[0]
        assert_close(pair.native_run(num_layers).step({0: FIRST})[0], expected)


def test_a_prompt_in_odd_chunks_gives_the_reference_logits(pair: Pair) -> None:
    run = pair.native_run(num_threads=2)
    parts = [run.step({0: FIRST[start:end]})[0] for start, end in pairwise([0, 1, 8, 11, 28, 45])]
    assert_close(np.concatenate(parts), pair.torch_run().step({0: FIRST})[0])


def test_decoding_token_by_token_gives_the_reference_logits(pair: Pair) -> None:
    run = pair.native_run()
    parts = [run.step({0: FIRST[:5]})[0]]
    parts += [run.step({0: [token]})[0] for token in FIRST[5:]]
    assert_close(np.concatenate(parts), pair.torch_run().step({0: FIRST})[0])


def test_a_decoding_sequence_and_a_prompt_in_one_batch_give_the_reference_logits(pair: Pair) -> None:
    run, reference = pair.native_run(num_threads=2), pair.torch_run()
    first, second = [run.step({0: FIRST[:20]})[0]], []
    for index, token in enumerate(FIRST[20:]):
        chunks = {0: [token]}
        if index < 6:
            chunks = {1: SECOND[5 * index : 5 * index + 5], 0: [token]}
        logits = run.step(chunks)
        first.append(logits[0])
        second += [logits[1]] if 1 in chunks else []
    assert_close(np.concatenate(first), reference.step({0: FIRST})[0])
    assert_close(np.concatenate(second), reference.step({1: SECOND[:30]})[1])


def test_far_beyond_the_sliding_window_the_logits_are_those_of_the_reference(pair: Pair) -> None:
    assert len(LONG) > 20 * WINDOW
    run = pair.native_run(num_threads=2)
    parts = [run.step({0: LONG[start:end]})[0] for start, end in pairwise([0, 64, 65, 190, 200])]
    assert_close(np.concatenate(parts), pair.torch_run().step({0: LONG})[0])


@pytest.mark.parametrize("case", ["llama3", "granite", "qwen3", "gemma3", "olmo2"])
def test_a_gguf_file_gives_the_reference_logits(case: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    pair = Pair(write_gguf(make_model(case), tmp_path / "model.gguf"))
    assert_close(pair.native_run().step({0: FIRST})[0], pair.torch_run().step({0: FIRST})[0])


@pytest.mark.parametrize("choice", [c for c in WeightChoice if c is not WeightChoice.F32])
def test_every_weight_format_is_close_to_the_same_weights_in_torch(choice: WeightChoice, tmp_path: Path) -> None:
    pair = Pair(save_model(make_model("qwen3"), tmp_path))
    packed = pack_model(pair.checkpoint, pair.config, choice, 1, lambda done, total: None)
    program = NativeProgram.build(pair.config, packed.matrices, packed.vectors)
    expected = PagedRun(Transformer(pair.config, widened(packed)), pair.config).step({0: FIRST})[0].numpy()
    error = np.linalg.norm(NativeRun(program).step({0: FIRST})[0] - expected) / np.linalg.norm(expected)
    is_quantised = any(matrix.format.is_quantized for matrix in packed.matrices.values())
    assert error < (0.03 if is_quantised else TOLERANCE)


def widened(packed: PackedModel) -> dict[str, torch.Tensor]:
    """What a packed model's weights stand for, as torch takes them."""
    vectors = {name: torch.from_numpy(vector) for name, vector in packed.vectors.items()}
    return vectors | {name: torch.from_numpy(all_rows(matrix)) for name, matrix in packed.matrices.items()}


def all_rows(matrix: PackedWeight) -> NDArray[np.float32]:
    return np.stack([matrix.row(index) for index in range(matrix.num_rows)])


# ---- the default model -------------------------------------------------------------------------------


def native_threads() -> int:
    return len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def smollm2() -> Path:
    torch.set_num_threads(1)  # a second thread only waits where the machine is shared
    return resolve_model("smollm2", NullProgress())


@pytest.mark.model
def test_smollm2_in_float32_chooses_the_tokens_of_torch(smollm2: Path) -> None:
    num_tokens = 32
    tokenizer = load_tokenizer(smollm2)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert len(prompts) == 20
    checkpoint = open_checkpoint(smollm2)
    config = parse_model_config(checkpoint)
    packed = pack_model(checkpoint, config, WeightChoice.F32, native_threads(), lambda done, total: None)
    program = NativeProgram.build(config, packed.matrices, packed.vectors)
    run = NativeRun(program, num_threads=native_threads(), num_blocks=8 * len(prompts))
    chosen: list[list[int]] = [[] for _ in prompts]
    chunks = dict(enumerate(prompts))
    for _ in range(num_tokens):
        for seq_id, token_id in run.next_tokens(chunks).items():
            chosen[seq_id].append(token_id)
        chunks = {seq_id: tokens[-1:] for seq_id, tokens in enumerate(chosen)}
    assert chosen == greedy_together(smollm2, prompts, num_tokens)


@pytest.mark.model
@pytest.mark.parametrize(("choice", "cache"), [(WeightChoice.AUTO, KvFormat.BF16), (WeightChoice.INT8, KvFormat.F16)])
def test_smollm2_quantised_has_the_perplexity_of_the_same_weights_in_torch(
    choice: WeightChoice, cache: KvFormat, smollm2: Path
) -> None:
    checkpoint = open_checkpoint(smollm2)
    config = parse_model_config(checkpoint)
    packed = pack_model(checkpoint, config, choice, native_threads(), lambda done, total: None)
    formats = {matrix.format for matrix in packed.matrices.values()}
    assert (WeightFormat.INT4 if choice is WeightChoice.AUTO else WeightFormat.INT8) in formats
    windows = text_windows(smollm2)
    run = NativeRun(NativeProgram.build(config, packed.matrices, packed.vectors), cache, native_threads(), 128)
    ours = perplexity([run.step({index: window})[index] for index, window in enumerate(windows)], windows)
    reference = PagedRun(Transformer(config, widened(packed)), config, num_blocks=128, block_size=16)
    theirs = perplexity([reference.step({i: window})[i].numpy() for i, window in enumerate(windows)], windows)
    assert 5 < theirs < 200
    assert abs(ours / theirs - 1) < 0.01


def text_windows(path: Path) -> list[list[int]]:
    """The text that compiled models are checked with, 3 KB of prose, in pieces of 256 tokens."""
    text = (ROOT / "src" / "headrace" / "native" / "calibration.txt").read_text()
    token_ids = load_tokenizer(path).encode(text)
    return [token_ids[start : start + 256] for start in range(0, len(token_ids), 256)]


def perplexity(logits: list[NDArray[np.float32]], windows: list[list[int]]) -> float:
    """Of each window's tokens after its first."""
    losses = []
    for rows, window in zip(logits, windows, strict=True):
        shifted = rows[:-1].astype(np.float64) - rows[:-1].max(axis=1, keepdims=True)
        normalizers = np.log(np.exp(shifted).sum(axis=1))
        losses.append(normalizers - shifted[np.arange(len(window) - 1), window[1:]])
    return float(np.exp(np.concatenate(losses).mean()))
