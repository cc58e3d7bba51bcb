"""Bodies of the routes that answer typed questions: OpenAI's ``/v1/decisions`` and its sibling ``/v1/systemone``.

Owns their fields. What they mean is said in ``decisions.py`` and ``systemone.py``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.server.json_body import BodyType, Unsupported
from headrace.server.protocol_common import WorkBody

JsonObject = dict[str, Any]


class InputPart(msgspec.Struct, frozen=True):
    """A part of a message or a question: text, JSON, what an assistant wrote or why it declined."""

    type: str
    text: str | None = None
    data: JsonObject | list[JsonObject] | None = None
    refusal: str | None = None


Parts = str | list[InputPart]


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """One step of what is to be judged: a message, a call of a tool, or what the tool gave."""

    type: str = "message"
    role: str | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Parts | None = None


class Predicate(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    """How likely is it that a statement about the input is true?"""

    instructions: Parts
    name: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """An option; the text ``"true"`` and the value ``true`` are two."""

    value: str | bool
    description: str | None = None


class ChoiceQuestion(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """Which of some options?"""

    instructions: Parts
    choices: list[Choice]
    name: str | None = None


class Level(msgspec.Struct, frozen=True):
    """A level of a scale, lowest first."""

    label: str
    description: str | None = None


class ScoreQuestion(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """Where on a scale?"""

    instructions: Parts
    levels: list[Level]
    name: str | None = None


class DecisionRequest(WorkBody, frozen=True, kw_only=True):
    """Body of ``POST /v1/decisions``."""

    input: str | list[InputItem]
    questions: list[Predicate | ChoiceQuestion | ScoreQuestion]

    # taken and without effect here: hints to routers, OpenAI's bookkeeping for its own platform
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None
    safety_identifier: str | None = None
    user: str | None = None


class PredicateAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    probability: float
    name: str | None = None


class ChoiceProbability(msgspec.Struct, frozen=True):
    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]
    name: str | None = None


class LevelProbability(msgspec.Struct, frozen=True):
    value: int
    label: str
    probability: float


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """``score`` is the expected index of the level, from 0."""

    score: float
    confidence: float
    probabilities: list[LevelProbability]
    name: str | None = None


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct, frozen=True):
    """Tokens of the input, once, and of the questions; nothing is generated."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    total_tokens: int
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()

    @classmethod
    def of(cls, num_input_tokens: int, num_cached_tokens: int) -> DecisionUsage:
        details = InputTokensDetails(num_cached_tokens, num_input_tokens - num_cached_tokens)
        return cls(num_input_tokens, details, num_input_tokens)


class DecisionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``POST /v1/decisions``: answers in the order of the questions."""

    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    model: str
    usage: DecisionUsage


class NoulQuestion(msgspec.Struct, frozen=True, tag_field="type", tag="noul"):
    """Is it so? ``criteria`` may say what ``"true"`` and ``"false"`` mean."""

    instructions: Any
    criteria: dict[str, str | None] | None = None


class NamedChoice(msgspec.Struct, frozen=True, tag_field="type", tag="choice"):
    """Which of the keys of ``criteria``? Their values describe them."""

    instructions: Any
    criteria: dict[str, Any]


class Scale(msgspec.Struct, frozen=True, tag_field="type", tag="score"):
    """Where between the first of ``criteria`` and the last?"""

    instructions: Any
    criteria: list[Any]


class SystemOneRequest(WorkBody, frozen=True, kw_only=True):
    """Body of ``POST /v1/systemone``: questions by name about a state, which is a text or any JSON."""

    state: Any
    questions: dict[str, NoulQuestion | NamedChoice | Scale]
    cache_salt: str | None = None


class NoulAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="noul"):
    noul: float


class NamedChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    choice: str
    probabilities: dict[str, float]
    confidence: float


class ScaleAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """``score`` is the expected index; ``legend`` gives the text of each."""

    score: float
    legend: dict[str, Any]
    probabilities: dict[str, float]
    confidence: float


class SystemOneResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``POST /v1/systemone``: an answer under the name of each question."""

    model: str
    answers: dict[str, NoulAnswer | NamedChoiceAnswer | ScaleAnswer]
    usage: DecisionUsage


DECISION_BODY = BodyType(DecisionRequest, {"stream": Unsupported("answers come all at once")})
SYSTEM_ONE_BODY = BodyType(SystemOneRequest, {"stream": Unsupported("answers come all at once")})
