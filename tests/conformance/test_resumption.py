"""An answer whose engine was lost halfway is the answer one engine would have given: tokens, text, everything."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.core.config import EngineConfig
from headrace.core.constraint import Constraint, ConstraintKind, Reasoning
from headrace.core.progress import NullProgress
from headrace.core.request import Request, RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.factory import build_engine
from headrace.engine.metrics import Metrics
from headrace.engine.streams import OutputStream, merge_outputs
from tests.tiny_model import write_tiny_model

PROMPT = [(5 * i + 7) % 250 + 3 for i in range(70)]
MAX_TOKENS = 24

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "min_p": 0.01},
    "three answers": {"temperature": 1.0, "n": 3, "top_k": 40},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "min_tokens": {"min_tokens": 12, "ignore_eos": False, "logit_bias": {2: 8.0}},
    "bad words": {"bad_words": ("the", "and")},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
    "prompt logprobs": {"temperature": 0.8, "logprobs": 0, "prompt_logprobs": 2},
    "allowed tokens": {"allowed_token_ids": tuple(range(20, 90))},
}

BACKENDS = {
    "native": {"backend": "native", "threads": 1, "dtype": "float32"},
    "native int8": {"backend": "native", "threads": 1, "dtype": "int8", "kv_cache_dtype": "int8"},
}


@pytest.fixture(scope="module", params=BACKENDS)
def new_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Engine]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(
        model=str(folder), kv_cache_bytes=4 << 20, max_num_batched_tokens=32, max_num_seqs=8, **BACKENDS[request.param]
    )
    return lambda: build_engine(config, NullProgress())


def request_with(sampling: dict[str, Any], stop: tuple[str, ...] = ()) -> Request:
    params = SamplingParams(**{"max_tokens": MAX_TOKENS, "ignore_eos": True, "stop": stop, **sampling})
    bad_words = ((119, 107), (3, 4)) if sampling.get("bad_words") else ()
    return Request(
        request_id="r",
        prompt_token_ids=PROMPT,
        sampling=params,
        seed=11,
        arrival_time=0.0,
        bad_word_token_ids=bad_words,
    )


def run(engine: Engine, num_steps: int = 10_000) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    for _ in range(num_steps):
        if not engine.has_work:
            break
        outputs.extend(engine.step())
    return outputs


def alone(request: Request, new_engine: Callable[[], Engine]) -> list[RequestOutput]:
    """Run a request in one engine that is not lost."""
    with contextlib.closing(new_engine()) as engine:
        engine.submit(request)
        return run(engine)


def interrupted(request: Request, new_engine: Callable[[], Engine], lives: Iterable[int]) -> list[RequestOutput]:
    """Run a request in several engines, each of which is lost after so many steps; the last one is not."""
    stream = OutputStream(request, Metrics("m").open_meter(request))
    engine = new_engine()
    engine.submit(request)
    outputs: list[RequestOutput] = []
    for num_steps in (*lives, 10_000):
        life = run(engine, num_steps)
        for output in life:
            stream.put(output, now=1.0)
        outputs += life
        engine.close()
        if stream.is_complete:
            break
        engine = new_engine()
        engine.resume(request, stream.progress())
    assert stream.is_complete
    return outputs


def whole(request: Request, outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
    """Everything a client sees of each sequence."""
    merged = [merge_outputs([o for o in outputs if o.index == index]) for index in range(request.sampling.n)]
    return [
        (m.token_ids, m.text, m.logprobs, m.prompt_logprobs, m.usage, m.finish_reason, m.stop_reason, m.error)
        for m in merged
    ]


@pytest.mark.parametrize("name", SAMPLING)
def test_a_lost_engine_changes_nothing(name: str, new_engine: Callable[[], Engine]) -> None:
    request = request_with(SAMPLING[name])
    undisturbed = whole(request, alone(request, new_engine))
    for lives in ((1,), (3,), (4,), (9,), (17,), (5, 4, 6), (3, 3, 3, 3, 3)):
        assert whole(request, interrupted(request, new_engine, lives)) == undisturbed, lives


def test_a_stop_string_that_began_before_the_engine_was_lost_is_found(new_engine: Callable[[], Engine]) -> None:
    plain = request_with({"temperature": 0.0})
    text = merge_outputs(alone(plain, new_engine)).text
    start = next(i for i in range(4, len(text)) if "\ufffd" not in text[i : i + 4])
    request = request_with({"temperature": 0.0}, stop=(text[start : start + 4],))
    undisturbed = whole(request, alone(request, new_engine))
    assert undisturbed[0][6] == text[start : start + 4]
    for num_steps in range(1, MAX_TOKENS):
        assert whole(request, interrupted(request, new_engine, (num_steps,))) == undisturbed, num_steps


def test_an_answer_under_a_grammar_goes_on_in_the_middle_of_it(new_engine: Callable[[], Engine]) -> None:
    form = Constraint(ConstraintKind.REGEX, r"[a-z]{4,6}: [0-9]{2,8}(, [a-z]+)?")
    request = msgspec.structs.replace(request_with({"temperature": 1.2, "n": 2, "ignore_eos": False}), constraint=form)
    undisturbed = whole(request, alone(request, new_engine))
    assert all(re.match(r"[a-z]{4,6}: [0-9]{2}", str(text)) for _, text, *_ in undisturbed)
    for lives in ((4,), (7,), (11,), (5, 5, 5)):
        assert whole(request, interrupted(request, new_engine, lives)) == undisturbed, lives


def test_an_answer_after_reasoning_goes_on_in_either(new_engine: Callable[[], Engine]) -> None:
    reasoning = Reasoning("<think>", "</think>", is_open=True, max_tokens=6)
    form = Constraint(ConstraintKind.REGEX, r"[a-z]{2,3}: [0-9]{2}", reasoning=reasoning)
    sampling = {"temperature": 1.2, "n": 2, "ignore_eos": False, "max_tokens": 40}
    request = msgspec.structs.replace(request_with(sampling), constraint=form)
    undisturbed = whole(request, alone(request, new_engine))
    assert all(re.fullmatch(r".*</think>[a-z]{2,3}: [0-9]{2}", str(text), re.DOTALL) for _, text, *_ in undisturbed)
    for lives in ((4,), (8,), (15,), (5, 5, 5)):
        assert whole(request, interrupted(request, new_engine, lives)) == undisturbed, lives


def test_what_has_ended_is_not_computed_again(new_engine: Callable[[], Engine]) -> None:
    request = request_with({"temperature": 1.5, "n": 4, "ignore_eos": False, "logit_bias": {2: 6.0}})
    undisturbed = whole(request, alone(request, new_engine))
    lengths = sorted(len(tokens) for tokens, *_ in undisturbed)  # type: ignore[arg-type]
    assert lengths[0] < lengths[-1], "some must end before others"
    for num_steps in range(3, 3 + lengths[-1]):
        assert whole(request, interrupted(request, new_engine, (num_steps,))) == undisturbed, num_steps
