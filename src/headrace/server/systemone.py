"""``POST /v1/systemone``: named questions about a state, in the dialect that TypeSafe's clients and Ollama's speak."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.errors import InvalidRequest
from headrace.program.decisions import Decider, Decisions, Distribution, Option, Question
from headrace.program.document import Turn
from headrace.server.access_log import App
from headrace.server.context import ServerContext
from headrace.server.protocol_common import GenerationFields
from headrace.server.protocol_decisions import (
    SYSTEM_ONE_BODY,
    DecisionUsage,
    NamedChoice,
    NamedChoiceAnswer,
    NoulAnswer,
    NoulQuestion,
    Scale,
    ScaleAnswer,
    SystemOneRequest,
    SystemOneResponse,
)
from headrace.server.work import WorkResponse, asked

AskedQuestion = NoulQuestion | NamedChoice | Scale


async def create_system_one(context: ServerContext, http: HttpRequest) -> App:
    """Answer named questions about a state by how likely each allowed answer is."""
    async with asked(context, http, SYSTEM_ONE_BODY) as body:
        if not body.value.questions:
            raise InvalidRequest("questions is empty; ask at least one", "questions")
        questions = [_question(name, question) for name, question in body.value.questions.items()]
        backend = body.backend(GenerationFields())
    decider = Decider(backend, context.documents)

    async def work() -> SystemOneResponse:
        state = Turn("user", _text(body.value.state))
        return _response(body.model, body.value, await decider.decide([state], questions))

    return WorkResponse(work, body.ignored_fields)


def _question(name: str, question: AskedQuestion) -> Question:
    instructions = _text(question.instructions)
    match question:
        case NoulQuestion():
            criteria = question.criteria or {}
            unknown = criteria.keys() - {"true", "false"}
            if unknown:
                raise InvalidRequest(
                    f"questions.{name}.criteria has {min(unknown)!r} but a noul has 'true' and 'false'", "questions"
                )
            return Question.yes_or_no(instructions, criteria.get("true") or "", criteria.get("false") or "")
        case NamedChoice():
            options = [Option(key, "" if text is None else _text(text)) for key, text in question.criteria.items()]
        case Scale():
            options = [Option(_text(level)) for level in question.criteria]
    return Question.one_of(instructions, options)


def _text(value: Any) -> str:
    """A text as it is, any other JSON as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _response(model: str, body: SystemOneRequest, decisions: Decisions) -> SystemOneResponse:
    named = zip(body.questions.items(), decisions.answers, strict=True)
    return SystemOneResponse(
        model=model,
        answers={name: _answer(question, answer) for (name, question), answer in named},
        usage=DecisionUsage.of(decisions.num_input_tokens, decisions.num_cached_tokens),
    )


def _answer(question: AskedQuestion, answer: Distribution) -> NoulAnswer | NamedChoiceAnswer | ScaleAnswer:
    match question:
        case NoulQuestion():
            return NoulAnswer(answer.probabilities[0])
        case NamedChoice():
            keys = list(question.criteria)
            return NamedChoiceAnswer(
                choice=keys[answer.best],
                probabilities=dict(zip(keys, answer.probabilities, strict=True)),
                confidence=answer.confidence,
            )
        case Scale():
            return ScaleAnswer(
                score=answer.mean,
                legend={str(index): level for index, level in enumerate(question.criteria)},
                probabilities={str(index): p for index, p in enumerate(answer.probabilities)},
                confidence=answer.confidence,
            )
