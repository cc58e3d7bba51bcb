"""SEC-23 and SEC-25: nothing of one request is ever found in another's answer.

The engine is the native one, with weights of which one token's are NaN: a prompt with that token fills its KV blocks
and its row of logits with NaN, and its blocks are the next request's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.core.config import EngineConfig
from headrace.core.constraint import StructuredOutputsParams
from headrace.core.progress import NullProgress
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine
from headrace.engine.request_builder import RequestBuilder
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from tests.server.real_engine import TINY_SETTINGS
from tests.tiny_model import VOCAB_SIZE, write_tiny_model

POISON = 250
NUM_REQUESTS = 240
MAX_LIVE = 64
PREFIXES = [[70 + i] * 40 for i in range(3)]


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in which token ``POISON`` embeds to NaN, and has an output row of its own that is sound."""
    folder = write_tiny_model(tmp_path_factory.mktemp("poisoned"))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    weights["model.embed_tokens.weight"][POISON] = np.nan
    save_file(weights, folder / "model.safetensors")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    return folder


@dataclass
class Answer:
    """All that a client would see of a request's sequences."""

    outputs: dict[int, list[RequestOutput]] = field(default_factory=dict)

    def add(self, output: RequestOutput) -> None:
        self.outputs.setdefault(output.index, []).append(output)

    @property
    def has_failed(self) -> bool:
        return any(parts[-1].finish_reason is FinishReason.ERROR for parts in self.outputs.values())

    def seen(self) -> list[tuple[object, ...]]:
        """What of a prompt was told before a failure depends on how it was cut; the rest must not."""
        rows: list[tuple[object, ...]] = []
        for index, parts in sorted(self.outputs.items()):
            last = parts[-1]
            rows.append(
                (
                    index,
                    "".join(part.text for part in parts),
                    [token for part in parts for token in part.token_ids],
                    [entry for part in parts for entry in part.logprobs],
                    [] if self.has_failed else [entry for part in parts for entry in part.prompt_logprobs],
                    last.finish_reason,
                    last.stop_reason,
                    last.error,
                )
            )
        return rows


def engine_over(folder: Path, **settings: Any) -> Engine:
    chosen = {"model": str(folder), "compile_cache": False, **TINY_SETTINGS, **settings}
    return build_engine(EngineConfig(**chosen), NullProgress())


@pytest.fixture(scope="module")
def builder(poisoned: Path) -> RequestBuilder:
    tokenizer: Tokenizer = load_tokenizer(poisoned)
    return RequestBuilder(TINY_SETTINGS["max_model_len"], VOCAB_SIZE, tokenizer)


def random_request(number: int, builder: RequestBuilder) -> Request:
    """A request of any kind; one in eight is poisoned, somewhere in its prompt."""
    rng = random.Random(number)
    prompt = [*rng.choice([[], *PREFIXES]), *(rng.randrange(3, 250) for _ in range(rng.randrange(1, 30)))]
    if is_poisoned(number):
        prompt.insert(rng.randrange(len(prompt)), POISON)

    def maybe(value: Any, nothing: Any = None) -> Any:
        return value if rng.random() < 0.3 else nothing

    sampling = SamplingParams(
        n=rng.choice((1, 1, 1, 2)),
        temperature=rng.choice((0.0, 0.8, 1.5)),
        top_p=rng.choice((1.0, 0.7)),
        top_k=rng.choice((0, 5)),
        min_p=maybe(0.05, 0.0),
        presence_penalty=maybe(1.5, 0.0),
        frequency_penalty=maybe(-1.0, 0.0),
        repetition_penalty=maybe(1.3, 1.0),
        logit_bias=maybe({rng.randrange(3, 250): 50.0, 99: -100.0}, {}),
        seed=number,
        max_tokens=rng.randrange(1, 24),
        min_tokens=0,
        ignore_eos=rng.random() < 0.7,
        stop=maybe(("e",), ()),
        bad_words=maybe(("a", "and"), ()),
        allowed_token_ids=maybe(tuple(range(60, 160)), ()),
        logprobs=maybe(3),
        prompt_logprobs=maybe(1),
        structured_outputs=maybe(StructuredOutputsParams(regex="[a-z]{1,30}")) if not is_poisoned(number) else None,
    )
    salt = rng.choice(("", "", "one", "two"))
    return builder.build(f"r{number}", prompt, sampling, arrival_time=0.0, cache_salt=salt)


def is_poisoned(number: int) -> bool:
    return number % 8 == 5


def run_alone(engine: Engine, request: Request) -> Answer:
    answer = Answer()
    engine.clear_prefix_cache()
    engine.submit(request)
    while engine.has_work:
        for output in engine.step():
            answer.add(output)
    return answer


def run_together(engine: Engine, requests: list[Request], seed: int) -> tuple[dict[str, Answer], set[str]]:
    """Let the requests join at random moments, and some leave; their answers, and who left."""
    rng = random.Random(seed)
    waiting, answers, left = list(requests), {}, set()
    while waiting or engine.has_work:
        while waiting and len(answers) - num_over(answers) < MAX_LIVE and rng.random() < 0.6:
            request = waiting.pop()
            answers[request.request_id] = Answer()
            engine.submit(request)
        for output in engine.step():
            answers[output.request_id].add(output)
        if rng.random() < 0.05 and answers:
            name = rng.choice(list(answers))
            engine.abort(name)
            left.add(name)
    return answers, left


def num_over(answers: dict[str, Answer]) -> int:
    return sum(
        bool(answer.outputs) and all(parts[-1].finish_reason is not None for parts in answer.outputs.values())
        for answer in answers.values()
    )


@pytest.fixture(scope="module")
def solo(poisoned: Path, builder: RequestBuilder) -> dict[str, Answer]:
    engine = engine_over(poisoned, max_num_seqs=2)
    try:
        return {f"r{n}": run_alone(engine, random_request(n, builder)) for n in range(NUM_REQUESTS)}
    finally:
        engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 64, "max_num_batched_tokens": 64},
        {"max_num_seqs": 64, "threads": 2, "max_num_batched_tokens": 96},
    ],
    ids=["one thread", "two threads"],
)
def test_sec_25_rows_are_reused_and_nothing_is_left_in_them(
    poisoned: Path, builder: RequestBuilder, solo: dict[str, Answer], settings: dict[str, Any]
) -> None:
    requests = [random_request(number, builder) for number in range(NUM_REQUESTS)]
    random.Random(3).shuffle(requests)
    engine = engine_over(poisoned, **settings)
    try:
        answers, left = run_together(engine, requests, seed=25)
    finally:
        engine.close()
    assert len(left) < NUM_REQUESTS // 2
    for name, answer in answers.items():
        if name not in left:
            assert answer.seen() == solo[name].seen(), name


def test_sec_25_a_row_of_nan_fails_its_request_and_no_other(solo: dict[str, Answer]) -> None:
    for number in range(NUM_REQUESTS):
        reasons = {parts[-1].finish_reason for parts in solo[f"r{number}"].outputs.values()}
        if is_poisoned(number):
            assert reasons == {FinishReason.ERROR}
        else:
            assert reasons <= {FinishReason.STOP, FinishReason.LENGTH}, number


def test_sec_25_after_poison_the_whole_pool_is_sound_again(poisoned: Path, builder: RequestBuilder) -> None:
    """Every block has held NaN before the sound request gets it."""
    engine = engine_over(poisoned, enable_prefix_caching=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
    sound = [70 + i % 90 for i in range(200)]

    def ask(name: str, prompt: list[int]) -> list[tuple[object, ...]]:
        return run_alone(engine, builder.build(name, prompt, sampling, arrival_time=0.0)).seen()

    try:
        before = ask("before", sound)
        for number in range(4):
            (row,) = ask(f"poison{number}", [POISON] * 500)
            assert row[-3] == FinishReason.ERROR
        assert ask("after", sound) == before
    finally:
        engine.close()


def neighbours(rng: random.Random) -> Iterator[tuple[list[int], list[int], int]]:
    """Two prompts, and how many tokens they have in common from the start."""
    for _ in range(60):
        length = rng.randrange(0, 120)
        common = [rng.randrange(3, 250) for _ in range(length)]
        first = [*common, 3, *(rng.randrange(3, 250) for _ in range(40))]
        second = [*common, 4, *(rng.randrange(3, 250) for _ in range(40))]
        yield first, second, length


@pytest.mark.parametrize("settings", [{}, {"swap_space_bytes": 1 << 20}], ids=["pool", "with a tier below"])
def test_sec_23_a_prefix_is_shared_by_its_tokens_and_nothing_else(
    poisoned: Path, builder: RequestBuilder, settings: dict[str, Any]
) -> None:
    """What comes from the cache is exactly what two prompts begin with, in one salt alone.

    Of a block that they share in part that is a copy, if a quarter of the block at least was kept.
    """
    engine = engine_over(poisoned, **settings)
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    names = iter(range(1000))

    def cached(prompt: list[int], salt: str) -> int:
        request = builder.build(f"q{next(names)}", prompt, sampling, arrival_time=0.0, cache_salt=salt)
        engine.submit(request)
        outputs: list[RequestOutput] = []
        while engine.has_work:
            outputs += engine.step()
        return outputs[-1].usage.num_cached_tokens

    try:
        for number, (first, second, length) in enumerate(neighbours(random.Random(23))):
            salt = f"salt {number}"
            assert cached(first, salt) == 0
            assert cached(second, f"{salt}?") == 0
            num_over = length % engine.info.block_size
            num_left = num_over if num_over < engine.info.block_size // 4 else 0
            assert cached(second, salt) in (length, length - num_left)
    finally:
        engine.close()
