"""The torch executor: with a model computable on paper, then with a real tiny one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.checkpoint.open import open_checkpoint
from headrace.core.errors import ConfigError
from headrace.core.model_config import LayerConfig, ModelConfig
from headrace.core.rope import RopeConfig
from headrace.core.sampling import SamplingParams
from headrace.core.step import PromptLogprobSpec, SampleSpec, ScheduledSequence, StepPlan, StepResult, TokenMask
from headrace.executor.torch_executor import TorchExecutor, create_torch_executor, torch_dtype
from headrace.model.config_parser import parse_model_config
from headrace.model.kv_memory import PagedKVMemory
from headrace.model.logprobs import MAX_ROWS_AT_ONCE
from headrace.model.torch_batch import TorchBatch
from headrace.model.weights import load_weights
from tests.tiny_model import write_tiny_model

torch.set_num_threads(1)

BLOCK_SIZE = 4
VOCAB = 50
PADDING = 3
NAN_TOKEN = 40
NAN_LOGITS_TOKEN = 41

FAKE_CONFIG = ModelConfig(
    architecture="fake",
    vocab_size=VOCAB,
    hidden_size=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    intermediate_size=2,
    max_position=512,
    layers=(LayerConfig(RopeConfig(rotary_dim=2, theta=10_000.0)),),
    norm_eps=1e-5,
    attention_scale=1.0,
)


class PaperModel:
    """After token t at position p the likeliest next token is ``(7 t + p) % VOCAB``, and the next likeliest the
    one after it. Its hidden state is ``(t, p)``; ``NAN_TOKEN`` makes that NaN, ``NAN_LOGITS_TOKEN`` the logits.
    """

    def __init__(self) -> None:
        self.most_logit_rows = 0

    def forward(self, batch: TorchBatch, kv: PagedKVMemory) -> Tensor:
        hidden = torch.stack([batch.input_ids, batch.positions], dim=1).float()
        hidden[batch.input_ids == NAN_TOKEN] = torch.nan
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        self.most_logit_rows = max(self.most_logit_rows, len(hidden))
        best = (7 * hidden[:, 0] + hidden[:, 1]) % VOCAB
        places = (torch.arange(VOCAB) - best.unsqueeze(1)) % VOCAB
        logits = torch.cat([-places.float(), torch.full((len(hidden), PADDING), 99.0)], dim=1)
        logits[hidden[:, 0] == NAN_LOGITS_TOKEN, 5] = torch.nan
        return logits


def _likeliest(token_id: int, position: int) -> int:
    return (7 * token_id + position) % VOCAB


def _paper_executor(num_blocks: int = 128) -> tuple[TorchExecutor, PaperModel]:
    model = PaperModel()
    kv = PagedKVMemory(FAKE_CONFIG, num_blocks, BLOCK_SIZE, torch.float32)
    return TorchExecutor(model, kv, VOCAB, torch.device("cpu")), model


def _item(
    seq_id: int,
    token_ids: list[int],
    start: int = 0,
    samples: bool = True,
    first_block: int | None = None,
    prompt_logprobs: PromptLogprobSpec | None = None,
    **params: Any,
) -> ScheduledSequence:
    """Share of a step of sequence ``seq_id``, in blocks of its own."""
    end = start + len(token_ids)
    first = seq_id * 10 if first_block is None else first_block
    block_ids = np.arange(first, first + -(-end // BLOCK_SIZE), dtype=np.int32)
    sampling = SamplingParams(**{"temperature": 0.0, **params})
    sample = SampleSpec(sampling, seed=seq_id, position=end) if samples else None
    return ScheduledSequence(seq_id, token_ids, start, block_ids, sample, prompt_logprobs)


def _plan(*scheduled: ScheduledSequence) -> StepPlan:
    return StepPlan(1, scheduled)


# -- computable on paper ---------------------------------------------------------------------------------


def test_tokens_come_in_plan_order_for_those_who_sample() -> None:
    executor, _ = _paper_executor()
    plan = _plan(_item(3, [1, 2, 9]), _item(1, [4, 4], samples=False), _item(2, [8], start=6))
    result = executor.execute(plan, None)
    assert result.sampled_token_ids == [_likeliest(9, 2), _likeliest(8, 6)]
    assert result.failed == {}
    assert result.elapsed_s > 0.0
    assert executor.num_blocks == 128


def test_a_step_in_which_nobody_samples_asks_for_no_logits() -> None:
    executor, model = _paper_executor()
    assert executor.execute(_plan(_item(1, [1, 2], samples=False)), None).sampled_token_ids == []
    assert model.most_logit_rows == 0


@dataclass(frozen=True)
class ReadyMask:
    """A mask that was computed already."""

    rows: TokenMask

    def wait(self) -> TokenMask:
        return self.rows


def test_mask_rows_belong_to_sampling_sequences_in_plan_order() -> None:
    executor, _ = _paper_executor()
    mask = np.zeros((2, 2), dtype=np.int32)
    mask[0, 0] = 1 << 6
    mask[1, 1] = 1 << 3
    plan = _plan(_item(1, [1]), _item(2, [1], samples=False), _item(3, [1]))
    assert executor.execute(plan, ReadyMask(mask)).sampled_token_ids == [6, 35]


def test_logprobs_are_named_by_sequence() -> None:
    executor, _ = _paper_executor()
    result = executor.execute(_plan(_item(5, [1]), _item(9, [2], logprobs=2)), None)
    assert list(result.logprobs) == [9]
    entry = result.logprobs[9]
    assert entry.token_id == result.sampled_token_ids[1] == 14
    assert [token for token, _ in entry.top] == [14, 15]
    assert entry.rank == 1
    assert entry.logprob == pytest.approx(-np.log(sum(np.exp(-place) for place in range(VOCAB))), abs=1e-6)


def test_prompt_logprobs_report_the_tokens_that_follow_their_rows() -> None:
    executor, _ = _paper_executor()
    token_ids = [1, 8, 20]
    spec = PromptLogprobSpec(first_row=1, target_token_ids=(20, 30), num_top=1)
    result = executor.execute(
        _plan(_item(1, [5, 5]), _item(2, token_ids, start=4, samples=False, prompt_logprobs=spec)), None
    )
    first, second = result.prompt_logprobs[2]
    assert list(result.prompt_logprobs) == [2]
    assert (first.token_id, first.rank, first.top[0][0]) == (20, (20 - _likeliest(8, 5)) % VOCAB + 1, _likeliest(8, 5))
    assert (second.token_id, second.top[0][0]) == (30, _likeliest(20, 6))


def test_prompt_logprobs_never_hold_more_than_a_few_rows_of_logits() -> None:
    executor, model = _paper_executor(num_blocks=256)
    token_ids = [int(token) for token in np.random.default_rng(0).integers(0, 40, size=300)]
    spec = PromptLogprobSpec(first_row=0, target_token_ids=tuple(token_ids[1:]), num_top=0)
    other = PromptLogprobSpec(first_row=0, target_token_ids=(2,), num_top=3)
    plan = _plan(
        _item(0, token_ids, prompt_logprobs=spec),
        _item(9, [1, 2], samples=False, first_block=90, prompt_logprobs=other),
    )
    result = executor.execute(plan, None)
    assert model.most_logit_rows == MAX_ROWS_AT_ONCE
    assert [entry.token_id for entry in result.prompt_logprobs[0]] == token_ids[1:]
    for position, entry in enumerate(result.prompt_logprobs[0]):
        likeliest = _likeliest(token_ids[position], position)
        assert entry.rank == (token_ids[position + 1] - likeliest) % VOCAB + 1
    assert len(result.prompt_logprobs[9][0].top) == 3


@pytest.mark.parametrize("samples", [True, False])
def test_a_sequence_whose_hidden_states_are_not_finite_fails_alone(samples: bool) -> None:
    executor, _ = _paper_executor()
    spec = PromptLogprobSpec(first_row=0, target_token_ids=(NAN_TOKEN,), num_top=0)
    plan = _plan(
        _item(1, [3]), _item(2, [1, NAN_TOKEN, 1], samples=samples, prompt_logprobs=spec, logprobs=0), _item(3, [4])
    )
    result = executor.execute(plan, None)
    tokens = [3 * 7 % VOCAB, -1, 4 * 7 % VOCAB]
    assert result.sampled_token_ids == (tokens if samples else [tokens[0], tokens[2]])
    assert list(result.failed) == [2]
    assert "NaN or infinite" in result.failed[2]
    assert result.logprobs == {}
    assert result.prompt_logprobs == {}


def test_a_sequence_whose_logits_are_not_finite_fails_alone() -> None:
    executor, _ = _paper_executor()
    result = executor.execute(_plan(_item(1, [NAN_LOGITS_TOKEN]), _item(2, [4])), None)
    assert result.sampled_token_ids == [-1, 28]
    assert list(result.failed) == [1]


def test_a_fault_of_the_model_is_an_exception_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, model = _paper_executor()

    def run_out_of_memory(hidden: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "logits", run_out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        executor.execute(_plan(_item(1, [3])), None)


# -- a real tiny model -----------------------------------------------------------------------------------

Executors = Callable[[], TorchExecutor]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, dict[str, Tensor]]:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path_factory.mktemp("model")))
    config = parse_model_config(checkpoint)
    return config, load_weights(checkpoint, config, torch_dtype("auto"), lambda done, total: None)


@pytest.fixture
def new_executor(tiny: tuple[ModelConfig, dict[str, Tensor]]) -> Executors:
    config, weights = tiny
    return lambda: create_torch_executor(config, weights, num_blocks=200, block_size=BLOCK_SIZE, threads=1)


PROMPTS = {1: list(range(5, 17)), 2: [7, 8, 9], 3: list(range(100, 140)), 4: [11]}
PARAMS: dict[int, dict[str, Any]] = {
    1: {"temperature": 1.0},
    2: {"temperature": 0.7, "top_p": 0.9},
    3: {"temperature": 1.3, "top_k": 40},
    4: {"temperature": 0.0},
}


def _generate(executor: TorchExecutor, seq_ids: list[int], num_tokens: int, chunk: int = 1000) -> dict[int, list[int]]:
    """Run some of ``PROMPTS`` together, each prompt in chunks."""
    tokens = {seq_id: list(PROMPTS[seq_id]) for seq_id in seq_ids}
    computed = dict.fromkeys(seq_ids, 0)
    while unfinished := [s for s in seq_ids if len(tokens[s]) < len(PROMPTS[s]) + num_tokens]:
        items = []
        for seq_id in unfinished:
            start = computed[seq_id]
            end = min(start + chunk, len(tokens[seq_id]))
            samples = end == len(tokens[seq_id])
            items.append(_item(seq_id, tokens[seq_id][start:end], start, samples, seq_id * 30, **PARAMS[seq_id]))
            computed[seq_id] = end
        result = executor.execute(_plan(*items), None)
        sampling = [item.seq_id for item in items if item.sample is not None]
        for seq_id, token_id in zip(sampling, result.sampled_token_ids, strict=True):
            tokens[seq_id].append(token_id)
    return {seq_id: tokens[seq_id][len(PROMPTS[seq_id]) :] for seq_id in seq_ids}


def test_neither_neighbours_nor_chunks_nor_order_change_a_token(new_executor: Executors) -> None:
    alone = {seq_id: _generate(new_executor(), [seq_id], 12)[seq_id] for seq_id in PROMPTS}
    assert _generate(new_executor(), [1, 2, 3, 4], 12) == alone
    assert _generate(new_executor(), [4, 3, 2, 1], 12) == alone
    assert _generate(new_executor(), [1, 2, 3, 4], 12, chunk=3) == alone


def test_prompt_logprobs_do_not_depend_on_the_chunk(new_executor: Executors) -> None:
    prompt = PROMPTS[3]

    def report(executor: TorchExecutor, start: int, end: int) -> StepResult:
        targets = tuple(prompt[start + 1 : end + 1])
        spec = PromptLogprobSpec(first_row=0, target_token_ids=targets, num_top=2)
        return executor.execute(_plan(_item(3, prompt[start:end], start, False, prompt_logprobs=spec)), None)

    whole = report(new_executor(), 0, 39).prompt_logprobs[3]
    executor = new_executor()
    parts = [entry for start in range(0, 39, 13) for entry in report(executor, start, start + 13).prompt_logprobs[3]]
    assert [part.token_id for part in parts] == [entry.token_id for entry in whole] == prompt[1:]
    assert [part.rank for part in parts] == [entry.rank for entry in whole]
    assert [part.logprob for part in parts] == pytest.approx([entry.logprob for entry in whole], abs=1e-5)
    assert sum(np.exp(logprob) for _, logprob in whole[0].top) <= 1.0


@pytest.fixture
def poisoned(tiny: tuple[ModelConfig, dict[str, Tensor]]) -> TorchExecutor:
    """The tiny model, except that token 300 embeds as NaN (its logit stays what it was)."""
    config, weights = tiny
    embedding = weights["embedding"].clone()
    embedding[300] = torch.nan
    weights = {**weights, "head": weights["embedding"], "embedding": embedding}
    return create_torch_executor(replace(config, has_tied_embeddings=False), weights, 200, BLOCK_SIZE, threads=1)


def test_nan_in_a_prompt_reaches_neither_neighbours_nor_later_owners_of_its_blocks(poisoned: TorchExecutor) -> None:
    tokens = [5, 6, 7, 8, 9, 10]
    good = [_item(1, tokens, first_block=20), _item(2, [11], first_block=40)]
    expected = poisoned.execute(_plan(*good), None).sampled_token_ids
    broken = _item(3, [300, 12, 13, 14, 15], first_block=0)
    result = poisoned.execute(_plan(good[0], broken, good[1]), None)
    assert result.sampled_token_ids == [expected[0], -1, expected[1]]
    assert list(result.failed) == [3]
    later = [_item(4, tokens, first_block=0), _item(5, [11], first_block=40)]
    assert poisoned.execute(_plan(*later), None).sampled_token_ids == expected


def test_nan_of_a_decoding_sequence_does_not_reach_decoding_neighbours(poisoned: TorchExecutor) -> None:
    prompts = {1: PROMPTS[1], 2: PROMPTS[3][:6], 3: PROMPTS[3][:10]}
    blocks = {1: 0, 2: 30, 3: 60}
    poisoned.execute(_plan(*(_item(s, prompts[s], samples=False, first_block=blocks[s]) for s in prompts)), None)

    def decode(seq_id: int, token_id: int) -> ScheduledSequence:
        return _item(seq_id, [token_id], len(prompts[seq_id]), first_block=blocks[seq_id])

    expected = poisoned.execute(_plan(decode(2, 9), decode(3, 9)), None).sampled_token_ids
    # The neighbours' tables differ in length: what fills up the shorter one must not be block 0.
    broken = _item(1, [300], start=0, first_block=0)
    result = poisoned.execute(_plan(broken, decode(2, 9), decode(3, 9)), None)
    assert result.sampled_token_ids == [-1, *expected]
    result = poisoned.execute(_plan(decode(2, 9), decode(1, 300), decode(3, 9)), None)
    assert result.sampled_token_ids == [expected[0], -1, expected[1]]


def test_dtype_names_are_checked() -> None:
    assert torch_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ConfigError, match="float64"):
        torch_dtype("float64")
