"""How far a packed model is from its own float32 weights, on a short text that ships with the package.

Both run natively, so what is compared is the packing and the integer arithmetic and nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.forward_batch import ForwardBatch
from headrace.core.step import ScheduledSequence, StepPlan
from headrace.native.operations import KvFormat
from headrace.native.packing import PackedWeight
from headrace.native.program import NativeProgram, NativeRuntime, RuntimeSizes

Float32Array = NDArray[np.float32]
Int32Array = NDArray[np.int32]

_BLOCK_SIZE = 16
_CHUNK_TOKENS = 64  # their logits over the largest vocabularies are some 100 MB
# Greedy continuations: from so many places of the text, so many tokens each.
_NUM_PROMPTS, _PROMPT_TOKENS, _NUM_GREEDY_TOKENS = 8, 32, 16
_MAX_COMPARED_ROWS = 128


class MatrixError(msgspec.Struct, frozen=True):
    """``relative_error`` is the root mean square of the difference to the reference, relative to the reference's."""

    name: str
    relative_error: float


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """A packed model against its float32 weights.

    ``top1_agreement`` is the share of the text's positions at which both find the same token most likely. Of
    ``num_greedy`` freely generated tokens ``num_equal_greedy`` come before their continuation's first other one.
    """

    num_tokens: int
    perplexity: float
    reference_perplexity: float
    top1_agreement: float
    num_greedy: int
    num_equal_greedy: int
    matrices: tuple[MatrixError, ...]

    @property
    def perplexity_change(self) -> float:
        """Relative; positive is worse."""
        return self.perplexity / self.reference_perplexity - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What a program makes of a text: its perplexity, the most likely token at each position, and continuations."""

    perplexity: float
    top1: Int32Array
    greedy: list[list[int]]


def calibration_text() -> str:
    """The text that models are compared on."""
    return files("headrace.native").joinpath("calibration.txt").read_text(encoding="utf-8")


def evaluate(program: NativeProgram, token_ids: Sequence[int], threads: int) -> Evaluation:
    """Run ``token_ids`` (two or more) once, then continue parts of them greedily."""
    runner = _Runner(program, len(token_ids), threads)
    targets = np.asarray(token_ids[1:], np.int32)
    log_likelihood, top1 = 0.0, []
    for start in range(0, len(targets), _CHUNK_TOKENS):
        end = min(start + _CHUNK_TOKENS, len(targets))
        logits = runner.logits(token_ids[start:end], start)
        log_likelihood += float(_log_probs(logits, targets[start:end]).sum())
        top1.append(logits.argmax(axis=1).astype(np.int32))
    # exp of a mean that is not finite, or too large, is still a perplexity: an infinite one
    mean = -log_likelihood / len(targets)
    perplexity = math.exp(mean) if mean < 700.0 else math.inf
    return Evaluation(
        perplexity, np.concatenate(top1), [runner.continue_greedily(prompt) for prompt in _prompts(token_ids)]
    )


def compare(
    evaluation: Evaluation,
    reference: Evaluation,
    matrices: Mapping[str, PackedWeight],
    reference_matrices: Mapping[str, PackedWeight],
) -> Accuracy:
    """Put two evaluations of one text side by side, and the weights they were made with."""
    return Accuracy(
        num_tokens=len(reference.top1) + 1,
        perplexity=evaluation.perplexity,
        reference_perplexity=reference.perplexity,
        top1_agreement=float((evaluation.top1 == reference.top1).mean()),
        num_greedy=sum(map(len, reference.greedy)),
        num_equal_greedy=sum(map(_num_equal, evaluation.greedy, reference.greedy)),
        matrices=tuple(
            MatrixError(name, _relative_error(matrix, reference_matrices[name])) for name, matrix in matrices.items()
        ),
    )


class _Runner:
    """One sequence, run from its start as often as asked; its blocks are the first ones, in order."""

    def __init__(self, program: NativeProgram, num_tokens: int, threads: int) -> None:
        longest = max(num_tokens, _PROMPT_TOKENS + _NUM_GREEDY_TOKENS)
        self._blocks = np.arange(-(-longest // _BLOCK_SIZE), dtype=np.int32)
        sizes = RuntimeSizes(
            num_blocks=len(self._blocks),
            block_size=_BLOCK_SIZE,
            max_tokens=_CHUNK_TOKENS,
            max_sequences=_CHUNK_TOKENS,
            max_context=len(self._blocks) * _BLOCK_SIZE,
            num_threads=threads,
        )
        self._runtime = NativeRuntime(program, sizes, KvFormat.F32)

    def logits(self, token_ids: Sequence[int], start: int) -> Float32Array:
        """Logits ``[len(token_ids), vocab_size]`` of tokens at positions from ``start`` on."""
        item = ScheduledSequence(seq_id=0, token_ids=list(token_ids), start=start, block_ids=self._blocks)
        self._runtime.forward(ForwardBatch.from_plan(StepPlan(0, (item,)), _BLOCK_SIZE).wanting_all())
        return self._runtime.logits(np.arange(len(token_ids), dtype=np.int32))

    def continue_greedily(self, prompt: Sequence[int]) -> list[int]:
        chosen: list[int] = []
        token_ids, start = list(prompt), 0
        while len(chosen) < _NUM_GREEDY_TOKENS:
            chosen.append(int(self.logits(token_ids, start)[-1].argmax()))
            start += len(token_ids)
            token_ids = chosen[-1:]
        return chosen


def _prompts(token_ids: Sequence[int]) -> list[Sequence[int]]:
    """Stretches of the text, evenly spaced; of a short text fewer."""
    starts = np.linspace(0, max(0, len(token_ids) - _PROMPT_TOKENS), _NUM_PROMPTS).astype(int)
    return [token_ids[start : start + _PROMPT_TOKENS] for start in dict.fromkeys(starts.tolist())]


def _num_equal(some: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=True)))


def _log_probs(logits: Float32Array, targets: Int32Array) -> NDArray[np.float64]:
    """Log-probability of each row's target, ``[rows]``."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    picked: NDArray[np.float64] = shifted[np.arange(len(targets)), targets] - np.log(np.exp(shifted).sum(axis=1))
    return picked


def _relative_error(matrix: PackedWeight, reference: PackedWeight) -> float:
    """Over rows spread evenly through the matrix."""
    rows = np.unique(np.linspace(0, matrix.num_rows - 1, min(matrix.num_rows, _MAX_COMPARED_ROWS)).astype(int))
    exact = np.stack([reference.row(int(row)) for row in rows]).astype(np.float64)
    error = np.stack([matrix.row(int(row)) for row in rows]) - exact
    size = float(np.square(exact).mean())
    return math.sqrt(float(np.square(error).mean()) / size) if size else 0.0
