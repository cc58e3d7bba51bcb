"""Scoring costs as few calls as it can, and says what scoring everything would say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import SamplingParams
from headrace.llm.offline import LLM
from headrace.program.backend import Call, ChoiceScore
from headrace.program.choices import choose
from headrace.program.decisions import Distribution, Option, Question, num_distinct_tokens, softmax
from headrace.program.document import Document
from headrace.program.ir import ChoiceMethod
from headrace.program.scoring import Continuation, ScoreReply, continuation, plan_calls, read_scores
from tests.tiny_model import write_tiny_model


def test_choices_of_one_token_take_one_call() -> None:
    choices = [Continuation((1, 2, 3, last), 3) for last in (7, 8, 9)]
    (call,) = plan_calls(choices)
    assert (call.token_ids, call.start, call.next_ids) == ((1, 2, 3), 3, (7, 8, 9))


def test_longer_choices_share_what_they_begin_with() -> None:
    choices = [Continuation((1, 2, *rest), 2) for rest in ((5,), (6, 7), (6, 8), (6, 7, 9))]
    calls = plan_calls(choices)
    assert [(call.token_ids, call.next_ids) for call in calls] == [
        ((1, 2), (5,)),
        ((1, 2, 6), (7, 8)),
        ((1, 2, 6, 7), (9,)),
    ]
    replies = [ScoreReply((), {5: -1.0}), ScoreReply((-0.5,), {7: -2.0, 8: -3.0}), ScoreReply((-0.5, -2.0), {9: -4.0})]
    scores = read_scores(choices, calls, replies)
    assert [score.logprobs for score in scores] == [(-1.0,), (-0.5, -2.0), (-0.5, -3.0), (-0.5, -2.0, -4.0)]


def test_a_token_across_the_seam_belongs_to_the_choice() -> None:
    assert continuation([1, 2, 3], [1, 2, 9, 4]) == Continuation((1, 2, 9, 4), 2)
    with pytest.raises(InvalidRequest, match="adds no token"):
        continuation([1, 2], [1, 2])
    with pytest.raises(InvalidRequest, match="nothing to condition it on"):
        continuation([1], [2])


def _scores(*rows: tuple[float, ...]) -> list[ChoiceScore]:
    return [ChoiceScore(tuple(range(len(row))), row) for row in rows]


def test_the_methods_choose_as_they_are_named() -> None:
    scores = _scores((-1.0, -1.0), (-0.5, -2.0), (-1.5,))
    assert choose(ChoiceMethod.TOKEN_LENGTH_NORMALIZED, scores).index == 0
    assert choose(ChoiceMethod.GREEDY_TOKEN_SELECTION, scores).index == 1
    alone = _scores((-0.1, -0.1), (-0.1, -0.1), (-1.5,))
    assert choose(ChoiceMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED, scores, alone).index == 2


def test_greedy_selection_goes_on_with_the_mean_of_a_shorter_choice() -> None:
    assert choose(ChoiceMethod.GREEDY_TOKEN_SELECTION, _scores((-1.0,), (-1.0, -0.5))).index == 1
    assert choose(ChoiceMethod.GREEDY_TOKEN_SELECTION, _scores((-1.0,), (-1.0, -1.5))).index == 0


# -- on a real engine ------------------------------------------------------------------------------------

CHOICES = ("yes", "no", "maybe so", "may", "y")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("scoring") / "tiny")
    with LLM(str(folder), max_model_len=512, kv_cache_bytes="4MiB", threads=1) as llm:
        yield llm


@pytest.mark.parametrize("prompt", ["Is the sky blue? ", "So: ", "Long " * 60])
def test_scores_equal_a_whole_row_of_logits(llm: LLM, prompt: str) -> None:
    backend = llm.backend.backend
    scores = llm.backend.wait(backend.score(Document(text=prompt), CHOICES, Call(SamplingParams())))
    for ours, choice in zip(scores.choices, CHOICES, strict=True):
        whole = llm.generate(prompt + choice, SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0))[0]
        assert whole.prompt_logprobs is not None
        entries = whole.prompt_logprobs[-len(ours.logprobs) :]
        expected = [entry[token_id].logprob for entry, token_id in zip(entries, ours.token_ids, strict=True) if entry]
        assert ours.logprobs == pytest.approx(expected, abs=1e-4)


def test_unconditional_scores_begin_after_the_begin_token(llm: LLM) -> None:
    backend = llm.backend.backend
    scores = llm.backend.wait(backend.score(Document(), CHOICES, Call(SamplingParams())))
    assert [len(score.logprobs) for score in scores.choices] == [
        len(llm._loaded.tokenizer.encode(choice)) for choice in CHOICES
    ]


def test_scoring_costs_the_choices_and_not_the_prompt(llm: LLM) -> None:
    backend = llm.backend.backend
    document = Document(text="Some words to begin with. " * 8)
    llm.backend.wait(backend.score(document, CHOICES, Call(SamplingParams())))
    again = llm.backend.wait(backend.score(document, CHOICES, Call(SamplingParams())))
    num_calls = len(plan_calls([Continuation(tuple(choice.encode()), 0) for choice in CHOICES]))
    assert again.num_prompt_tokens - again.num_cached_tokens <= num_calls * (16 + 8)


# -- decisions -------------------------------------------------------------------------------------------


def test_a_distribution_says_its_best_its_mean_and_its_confidence() -> None:
    answer = Distribution((0.1, 0.7, 0.2))
    assert (answer.best, answer.mean) == (1, pytest.approx(1.1))
    assert answer.confidence == pytest.approx((0.7 - 1 / 3) / (2 / 3))
    assert Distribution((0.5, 0.5)).confidence == 0.0
    assert softmax([0.0, -math.inf]) == (1.0, 0.0)


def test_questions_show_their_options_under_labels_none_of_which_begins_another() -> None:
    few = Question.one_of("Which?", [Option("red"), Option("blue", "like the sky")])
    assert few.text() == "Answer with one of A to B.\nWhich?\nA) red\nB) blue: like the sky"
    many = Question.one_of("Which?", [Option(str(number)) for number in range(255)])
    assert len(set(map(len, many.labels))) == 1
    assert Question.yes_or_no("So?", yes="it is").text() == "Answer with Yes or No.\nSo?\nYes: it is"
    with pytest.raises(InvalidRequest, match="1 options but must have between 2 and 255"):
        Question.one_of("Which?", [Option("only")])


def test_shared_tokens_count_once() -> None:
    assert num_distinct_tokens([[1, 2, 3], [1, 2, 4, 5], [1, 2]]) == 2 + 1 + 2
