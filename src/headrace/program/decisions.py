"""Typed questions about one input, answered by how likely a model finds each allowed answer; nothing is generated.

Owns how a question is put to a model and how log-probabilities become an answer. All questions of a request share the
input's tokens as a prefix, and each costs the tokens of its own text. It does not know the dialects they come in.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.program.document import Document, Turn
from headrace.program.encoding import DocumentEncoder
from headrace.program.engine_backend import EngineBackend, all_or_none
from headrace.program.scoring import Continuation

MAX_QUESTIONS = 400
MAX_OPTIONS = 255

_PART = 32
"""Questions that are put into tokens at a time, so that the first are answered while the others are."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Option:
    """One allowed answer, as the model is shown it."""

    text: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and its options in order. ``labels`` are what the model is to answer with, one per option."""

    instructions: str
    options: tuple[Option, ...]
    labels: tuple[str, ...]

    @classmethod
    def yes_or_no(cls, instructions: str, yes: str = "", no: str = "") -> Question:
        """Whether a statement is true; the first option is that it is."""
        return cls(instructions, (Option("Yes", yes), Option("No", no)), ("Yes", "No"))

    @classmethod
    def one_of(cls, instructions: str, options: Sequence[Option]) -> Question:
        """Which of several options, from 2 to ``MAX_OPTIONS``. Raises ``InvalidRequest``."""
        if not 2 <= len(options) <= MAX_OPTIONS:
            raise InvalidRequest(
                f"a question has {len(options)} options but must have between 2 and {MAX_OPTIONS}", "questions"
            )
        return cls(instructions, tuple(options), _labels(len(options)))

    def text(self) -> str:
        """The question as the model is shown it: first how to answer, which many questions have in common."""
        if self.labels == ("Yes", "No"):
            meanings = [f"{option.text}: {option.description}" for option in self.options if option.description]
            return "\n".join(["Answer with Yes or No.", self.instructions, *meanings])
        shown = zip(self.labels, self.options, strict=True)
        lines = [f"{label}) {_described(option)}" for label, option in shown]
        return "\n".join([f"Answer with one of {self.labels[0]} to {self.labels[-1]}.", self.instructions, *lines])


@dataclass(frozen=True, slots=True)
class Distribution:
    """How likely each option is, among the options; in order."""

    probabilities: tuple[float, ...]

    @property
    def best(self) -> int:
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """From 0, when all are equally likely, to 1, when one has it all."""
        share = 1.0 / len(self.probabilities)
        return (self.probabilities[self.best] - share) / (1.0 - share)

    @property
    def mean(self) -> float:
        """The expected index."""
        return sum(index * probability for index, probability in enumerate(self.probabilities))


@dataclass(frozen=True, slots=True)
class Decisions:
    """Answers in the order of the questions. The input's tokens count once in ``num_input_tokens``."""

    answers: tuple[Distribution, ...]
    num_input_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Answers to some of the questions, and what they were asked as."""

    answers: list[Distribution]
    prompts: list[tuple[int, ...]]
    num_cached_before: int


class Decider:
    """Answers questions with one model. Belongs to the backend's event loop."""

    def __init__(self, backend: EngineBackend, encoder: DocumentEncoder) -> None:
        self._backend = backend
        self._encoder = encoder

    async def decide(self, turns: Sequence[Turn], questions: Sequence[Question]) -> Decisions:
        """Answer all questions about a conversation, or about a text, which is one message by the user."""
        if not 1 <= len(questions) <= MAX_QUESTIONS:
            raise InvalidRequest(
                f"there are {len(questions)} questions but there must be between 1 and {MAX_QUESTIONS}", "questions"
            )
        return await self.decide_each([(turns, question) for question in questions])

    async def decide_each(self, pairs: Sequence[tuple[Sequence[Turn], Question]]) -> Decisions:
        """Answer each question about an input of its own; what inputs begin with in common is computed once."""
        parts = [pairs[start : start + _PART] for start in range(0, len(pairs), _PART)]
        decided = await all_or_none([self._decide_part(part) for part in parts])
        return Decisions(
            answers=tuple(answer for part in decided for answer in part.answers),
            num_input_tokens=num_distinct_tokens([prompt for part in decided for prompt in part.prompts]),
            num_cached_tokens=min(part.num_cached_before for part in decided),
        )

    async def _decide_part(self, pairs: Sequence[tuple[Sequence[Turn], Question]]) -> _Part:
        rows = await asyncio.to_thread(self._continuations, pairs)
        scores = await self._backend.score_tokens([each for row in rows for each in row])
        totals = iter(score.total for score in scores.choices)
        return _Part(
            answers=[Distribution(softmax([next(totals) for _ in row])) for row in rows],
            prompts=[row[0].token_ids[: row[0].start] for row in rows],
            num_cached_before=scores.num_cached_before,
        )

    def _continuations(self, pairs: Sequence[tuple[Sequence[Turn], Question]]) -> list[list[Continuation]]:
        labels = {label for _, question in pairs for label in question.labels}
        label_ids = {label: self._label_ids(label) for label in labels}
        rows = []
        for turns, question in pairs:
            prompt_ids = self._encoder.encode(self._document(turns, question))
            rows.append([Continuation((*prompt_ids, *label_ids[label]), len(prompt_ids)) for label in question.labels])
        return rows

    def _document(self, turns: Sequence[Turn], question: Question) -> Document:
        """The input with the question in its last message, and the answer about to begin."""
        if self._encoder.chat is None:
            text = "\n\n".join(turn.content for turn in turns)
            return Document(text=f"{text}\n\n{question.text()}\nAnswer:")
        *before, last = turns
        if last.role != "user":
            before, last = [*turns], Turn("user", "")
        content = f"{last.content}\n\n{question.text()}" if last.content else question.text()
        return Document(turns=(*before, Turn("user", content)))

    def _label_ids(self, label: str) -> tuple[int, ...]:
        spelled = label if self._encoder.chat is not None else f" {label}"
        return tuple(self._encoder.tokenizer.encode(spelled, add_special_tokens=False))


def softmax(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Probabilities among the given ones."""
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def num_distinct_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of all prompts, what all of them begin with counted once."""
    shared = 0
    shortest = min(map(len, prompts))
    while shared < shortest and all(prompt[shared] == prompts[0][shared] for prompt in prompts):
        shared += 1
    return shared + sum(len(prompt) - shared for prompt in prompts)


def _labels(count: int) -> tuple[str, ...]:
    """Letters while they suffice; then numbers of one width, so that none begins another."""
    if count <= len(_LETTERS):
        return tuple(_LETTERS[:count])
    return tuple(f"{number:03d}" for number in range(1, count + 1))


def _described(option: Option) -> str:
    return f"{option.text}: {option.description}" if option.description else option.text
