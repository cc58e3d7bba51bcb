"""What programs share is computed once, to the token, whether their calls come one by one or together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from examples.programs import ARGUMENTS, PROGRAMS

from headrace import program as sgl
from headrace.core.request import Request, RequestOutput
from headrace.engine.loop import DrivenEngine
from headrace.llm.offline import LLM
from headrace.program.speculation import Speculation
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("prefixes") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


class Ledger:
    """Every call an engine got, in order, and what a cache that shares every token would have had of its prompt.

    The last token of an answer was never computed, and some of a prompt must be: its last token, and what precedes
    those whose log-probabilities are reported.
    """

    def __init__(self, engine: DrivenEngine) -> None:
        self._submit, self._step = engine.submit, engine.step
        self._tokens: dict[str, list[int]] = {}
        self._num_known: dict[str, int] = {}
        self.ideal = self.prompt = 0
        engine.submit = self.submit  # type: ignore[method-assign]
        engine.step = self.step  # type: ignore[method-assign]

    def submit(self, request: Request) -> None:
        prompt = request.prompt_token_ids
        known = (tokens[: self._num_known[request_id]] for request_id, tokens in self._tokens.items())
        found = max((_common(prompt, tokens) for tokens in known), default=0)
        sampling = request.sampling
        reported = sampling.prompt_logprobs_start - 1 if sampling.prompt_logprobs is not None else len(prompt)
        self.ideal += min(found, len(prompt) - 1, reported)
        self.prompt += len(prompt)
        self._tokens[request.request_id] = list(prompt)
        self._num_known[request.request_id] = len(prompt)
        self._submit(request)

    def step(self) -> list[RequestOutput]:
        outputs = self._step()
        for output in outputs:
            tokens = self._tokens[output.request_id]
            tokens += output.token_ids
            self._num_known[output.request_id] = len(tokens) - 1
        return outputs

    def is_met_by(self, num_cached_tokens: int) -> bool:
        """Whether so many tokens are the ideal within 2 % of the prompts."""
        return abs(num_cached_tokens - self.ideal) <= 0.02 * self.prompt


def _common(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_hits_what_its_calls_have_in_common(folder: Path, name: str) -> None:
    with LLM(str(folder), max_model_len=2048, kv_cache_bytes="8MiB", threads=1, max_num_seqs=16) as llm:
        llm.backend.speculation = Speculation(0)  # what a wrong guess has cost is in the ledger only
        ledger = Ledger(llm._loaded.engine)
        usage = llm.run(PROGRAMS[name], **ARGUMENTS[name], temperature=0.0).usage
    assert usage.num_prompt_tokens == ledger.prompt
    assert ledger.is_met_by(usage.num_cached_tokens)


def test_a_batch_computes_its_constant_text_once(folder: Path) -> None:
    @sgl.function
    def program(s, word):
        s += "The same words for every run of the batch. " * 4 + word + sgl.gen("x", max_tokens=2)

    with LLM(str(folder), max_model_len=2048, kv_cache_bytes="8MiB", threads=1, max_num_seqs=16) as llm:
        ledger = Ledger(llm._loaded.engine)
        states = list(program.run_batch([{"word": chr(97 + i)} for i in range(12)], backend=llm.backend))
        num_cached = sum(state.usage.num_cached_tokens for state in states)
    assert ledger.is_met_by(num_cached)
    assert num_cached > 0.8 * ledger.prompt


def test_calls_one_after_another_share_all_but_the_last_token(folder: Path) -> None:
    @sgl.function
    def program(s):
        s += "A text of some length, so that it fills more than one block."
        for number in range(6):
            s += f" Part {number}:" + sgl.gen(f"part{number}", max_tokens=5)

    with LLM(str(folder), max_model_len=2048, kv_cache_bytes="8MiB", threads=1) as llm:
        ledger = Ledger(llm._loaded.engine)
        usage = llm.run(program, temperature=0.0).usage
    assert ledger.is_met_by(usage.num_cached_tokens)


def test_the_branches_of_a_fork_share_what_they_begin_with_however_short_it_is(folder: Path) -> None:
    @sgl.function
    def program(s):
        s += "Six."
        forks = s.fork(6)
        forks += lambda i: f" Branch {i}:" + sgl.gen("x", max_tokens=3)
        forks.join()

    with LLM(str(folder), max_model_len=2048, kv_cache_bytes="8MiB", threads=1, max_num_seqs=16) as llm:
        ledger = Ledger(llm._loaded.engine)
        usage = llm.run(program, temperature=0.0).usage
    assert ledger.is_met_by(usage.num_cached_tokens)
    assert usage.num_cached_tokens > 0.5 * ledger.prompt
