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
from headrace.engine.tool_formats import ToolFormat
from headrace.server.logprobs import TokenView
from headrace.server.protocol_chat import ChatDelta, ChatMessage
from headrace.server.protocol_tools import CallDelta, CalledFunction, CallOut

_NUM_END_TOKENS = 8
"""Tokens at a prompt's end that can hold an opening tag with blanks behind it."""


def new_answer(tags: tuple[str, str] | None, tool_format: ToolFormat | None, end_of_prompt: str) -> AnswerParts:
    """How to take one choice's text apart; ``end_of_prompt`` tells whether the template has opened the reasoning."""
    reasoning = None
    if tags is not None:
        reasoning = ReasoningSplitter(*tags, is_inside=end_of_prompt.rstrip().endswith(tags[0]))
    return AnswerParts(reasoning, None if tool_format is None else ToolCallSplitter(tool_format))


def prompt_end(tokens: TokenView, prompt_token_ids: Sequence[int]) -> str:
    """The last few tokens of a prompt as text, control tokens included."""
    data = b"".join(tokens.shown_bytes(token_id) for token_id in prompt_token_ids[-_NUM_END_TOKENS:])
    return data.decode("utf-8", "replace")


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
