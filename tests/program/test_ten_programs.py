"""Ten programs on a real engine give what the same calls give that somebody makes by hand, one after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from examples.programs import ARGUMENTS, PROGRAMS
from examples.programs_by_hand import BY_HAND, Messages

from headrace import program as sgl
from headrace.core.sampling import SamplingParams
from headrace.llm.offline import LLM
from tests.tiny_model import write_tiny_model

SETTINGS: dict[str, Any] = {"max_model_len": 2048, "kv_cache_bytes": "8MiB", "threads": 1, "max_num_seqs": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for programs."""
    folder = write_tiny_model(tmp_path_factory.mktemp("programs") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def other_llm(folder: Path) -> Iterator[LLM]:
    """A model for the calls by hand, whose cache knows nothing of programs."""
    with LLM(str(folder), **SETTINGS, enable_prefix_caching=False) as llm:
        yield llm


class OfflineHand:
    """Makes calls one after the other, and scores choices on the whole prompt."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    async def chat(self, messages: Messages, **sampling: Any) -> str:
        goes_on = messages[-1]["role"] == "assistant"
        params = SamplingParams(**{"temperature": 0.0, **sampling})
        return self._llm.chat(messages, params, continue_final_message=goes_on)[0].outputs[0].text

    async def complete(self, text: str, **sampling: Any) -> str:
        return self._llm.generate(text, SamplingParams(**{"temperature": 0.0, **sampling}))[0].outputs[0].text

    async def choose(self, prompt: Messages | str, choices: Sequence[str]) -> str:
        if isinstance(prompt, str):
            scores = self._llm.score(prompt, list(choices))
        else:
            scores = [self._score(prompt, choice) for choice in choices]
        means = [score.total_logprob / len(score.logprobs) for score in scores]
        return choices[means.index(max(means))]

    def _score(self, messages: Messages, choice: str) -> Any:
        *before, last = messages
        alone, whole = (self._ids([*before, {**last, "content": last["content"] + more}]) for more in ("", choice))
        start = next((i for i, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), len(alone))
        prompt, rest = {"prompt_token_ids": whole[:start]}, {"prompt_token_ids": whole[start:]}
        return self._llm.score([prompt], [rest])[0]  # type: ignore[list-item]

    def _ids(self, messages: Messages) -> list[int]:
        return self._llm._loaded.chat_token_ids(messages, continue_final_message=True)

    async def all(self, calls: Sequence[Awaitable[Any]]) -> list[Any]:
        return [await call for call in calls]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_calls_by_hand_give(llm: LLM, other_llm: LLM, name: str) -> None:
    expected = asyncio.run(BY_HAND[name](OfflineHand(other_llm), **ARGUMENTS[name]))  # type: ignore[operator]
    state = llm.run(PROGRAMS[name], **ARGUMENTS[name], temperature=0.0)
    found = {key: state.ret_value if key == "return" else state[key] for key in expected}
    assert found == expected
    assert llm._loaded.engine.stats().num_running == 0
    assert llm._loaded.engine.stats().num_waiting == 0


def test_an_llm_runs_prompts_and_programs_in_turn(llm: LLM) -> None:
    before = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=4))[0].outputs[0].token_ids
    llm.run(PROGRAMS["extract_json"], **ARGUMENTS["extract_json"])
    after = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=4))[0].outputs[0].token_ids
    assert before == after


def test_answers_are_held_to_their_types(llm: LLM) -> None:
    class Point(msgspec.Struct, forbid_unknown_fields=True):
        side: Literal["left", "right"]
        is_far: bool

    @sgl.function
    def program(s):
        s += "A number: " + sgl.gen_int("number", max_tokens=4)
        s += " A word: " + sgl.gen("word", regex="[a-c]{3}", max_tokens=8)
        s += " A point: " + sgl.gen("point", dtype=Point, max_tokens=64)

    state = llm.run(program, temperature=0.0)
    assert isinstance(state["number"], int)
    assert set(state["word"]) <= set("abc")
    assert isinstance(state["point"], Point)
