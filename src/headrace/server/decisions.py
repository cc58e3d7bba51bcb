"""``POST /v1/decisions``: typed questions about one input, in OpenAI's dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from starlette.requests import Request as HttpRequest

from headrace.core.errors import InvalidRequest
from headrace.program.decisions import Decider, Decisions, Distribution, Option, Question
from headrace.program.document import Turn
from headrace.server.access_log import App
from headrace.server.context import ServerContext
from headrace.server.protocol_common import GenerationFields
from headrace.server.protocol_decisions import (
    DECISION_BODY,
    ChoiceAnswer,
    ChoiceProbability,
    ChoiceQuestion,
    DecisionRequest,
    DecisionResponse,
    DecisionUsage,
    InputItem,
    InputPart,
    LevelProbability,
    Parts,
    Predicate,
    PredicateAnswer,
    ScoreAnswer,
    ScoreQuestion,
)
from headrace.server.work import WorkResponse, asked

AskedQuestion = Predicate | ChoiceQuestion | ScoreQuestion

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}


async def create_decision(context: ServerContext, http: HttpRequest) -> App:
    """Answer up to 400 typed questions about one input by how likely each allowed answer is."""
    async with asked(context, http, DECISION_BODY) as body:
        turns = input_turns(body.value.input)
        questions = [_question(question, index) for index, question in enumerate(body.value.questions)]
        backend = body.backend(GenerationFields(user=body.value.user))
    decider = Decider(backend, context.documents)

    async def work() -> DecisionResponse:
        return _response(body.model, body.value, await decider.decide(turns, questions))

    return WorkResponse(work, body.ignored_fields)


def input_turns(items: str | list[InputItem]) -> list[Turn]:
    """What is to be judged as turns of a conversation, neighbours of one role in one."""
    if isinstance(items, str):
        return [Turn("user", items)]
    if not items:
        raise InvalidRequest("input is an empty list; send a text or at least one message", "input")
    return _merged(_turn(item, f"input[{index}]") for index, item in enumerate(items))


def parts_text(parts: Parts | None, where: str) -> str:
    """Text of a content. Raises ``InvalidRequest`` for images."""
    if parts is None:
        raise InvalidRequest(f"{where} is missing; it is required", where)
    if isinstance(parts, str):
        return parts
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _turn(item: InputItem, where: str) -> Turn:
    match item.type:
        case "message":
            if item.role not in _ROLES:
                raise InvalidRequest(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
            return Turn(_ROLES[item.role], parts_text(item.content, f"{where}.content"))
        case "function_call" | "custom_tool_call":
            given = item.arguments if item.type == "function_call" else item.input
            return Turn("assistant", f"[calls {item.name or 'a tool'} with {given or ''}]")
        case "function_call_output" | "custom_tool_call_output":
            return Turn("user", f"[result of the call]\n{parts_text(item.output, f'{where}.output')}")
    raise InvalidRequest(f"{where}.type {item.type[:40]!r} is not one that can be judged here", f"{where}.type")


def _part_text(part: InputPart, where: str) -> str:
    match part:
        case InputPart(type="input_text" | "output_text" | "text", text=str(text)):
            return text
        case InputPart(type="input_json", data=data) if data is not None:
            return msgspec.json.encode(data).decode()
        case InputPart(type="refusal", refusal=str(text)):
            return text
    raise InvalidRequest(f"{where} is of type {part.type[:40]!r}, but this model reads only text and JSON", where)


def _merged(turns: Iterable[Turn]) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role:
            merged[-1] = Turn(turn.role, f"{merged[-1].content}\n\n{turn.content}")
        else:
            merged.append(turn)
    return merged


def _question(question: AskedQuestion, index: int) -> Question:
    where = f"questions[{index}]"
    instructions = parts_text(question.instructions, f"{where}.instructions")
    match question:
        case Predicate():
            return Question.yes_or_no(instructions)
        case ChoiceQuestion():
            values = [(type(choice.value), choice.value) for choice in question.choices]
            if len(set(values)) < len(values):
                raise InvalidRequest(f"{where}.choices has the same value twice", f"{where}.choices")
            options = [Option(_shown(choice.value), choice.description or "") for choice in question.choices]
        case ScoreQuestion():
            options = [Option(level.label, level.description or "") for level in question.levels]
    return Question.one_of(instructions, options)


def _shown(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _response(model: str, body: DecisionRequest, decisions: Decisions) -> DecisionResponse:
    pairs: Sequence[tuple[AskedQuestion, Distribution]] = list(zip(body.questions, decisions.answers, strict=True))
    return DecisionResponse(
        answers=[_answer(question, answer) for question, answer in pairs],
        model=model,
        usage=DecisionUsage.of(decisions.num_input_tokens, decisions.num_cached_tokens),
    )


def _answer(question: AskedQuestion, answer: Distribution) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    match question:
        case Predicate():
            return PredicateAnswer(probability=answer.probabilities[0], name=question.name)
        case ChoiceQuestion():
            pairs = zip(question.choices, answer.probabilities, strict=True)
            return ChoiceAnswer(
                choice=question.choices[answer.best].value,
                confidence=answer.confidence,
                probabilities=[ChoiceProbability(choice.value, probability) for choice, probability in pairs],
                name=question.name,
            )
        case ScoreQuestion():
            levels = enumerate(zip(question.levels, answer.probabilities, strict=True))
            return ScoreAnswer(
                score=answer.mean,
                confidence=answer.confidence,
                probabilities=[LevelProbability(index, level.label, p) for index, (level, p) in levels],
                name=question.name,
            )
