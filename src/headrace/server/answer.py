"""The parts of an answer as OpenAI's messages and deltas spell them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec import UNSET

from headrace.engine.answer_parts import (
    AnswerParts,
    CallArguments,
    CallBegun,
    Content,
    Part,
    Reasoning,
    ReasoningSplitter,
    ToolCallSplitter,
)
from headrace.engine.reasoning import ReasoningHabit
from headrace.engine.tool_formats import ToolFormat
from headrace.server.protocol_chat import ChatDelta, ChatMessage
from headrace.server.protocol_tools import CallDelta, CalledFunction, CallOut


def new_answer(
    habit: ReasoningHabit | None, tool_format: ToolFormat | None, prompt_token_ids: Sequence[int]
) -> AnswerParts:
    """How to take one choice's text apart: reasoning if it is to be told apart, calls if there may be any."""
    reasoning = None
    if habit is not None:
        reasoning = ReasoningSplitter(habit.begin, habit.end, is_inside=habit.opens_in(prompt_token_ids))
    return AnswerParts(reasoning, None if tool_format is None else ToolCallSplitter(tool_format))


def part_delta(part: Part) -> ChatDelta:
    """A part as a stream's delta; a call gets its id with its name, once."""
    match part:
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning_content=text)
        case CallBegun(index, name):
            function = CalledFunction(name=name, arguments="")
            return ChatDelta(tool_calls=[CallDelta(index, new_call_id(), "function", function)])
        case CallArguments(index, text):
            return ChatDelta(tool_calls=[CallDelta(index, function=CalledFunction(arguments=text))])


def whole_message(parts: Sequence[Part], role: str) -> ChatMessage:
    """The message that a stream of the same parts adds up to."""
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [
        CallOut(new_call_id(), CalledFunction(part.name, _arguments(parts, part.index)))
        for part in parts
        if isinstance(part, CallBegun)
    ]
    return ChatMessage(
        role,
        None if calls and not content else content,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _arguments(parts: Sequence[Part], index: int) -> str:
    return "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == index)
