"""Messages as clients write them to messages as chat templates read them.

Owns the shapes a message's content and tool calls may have. A template sees text where it expects text and a
list of parts where it expects parts, whatever the client sent. Does not know templates, only the two facts
about one that matter here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.engine.template_filters import ToolArguments


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """What a template expects: content as a list of parts rather than text; the role ``developer``."""

    has_content_parts: bool = False
    has_developer_role: bool = False


def template_messages(messages: Sequence[Mapping[str, object]], style: MessageStyle) -> list[dict[str, Any]]:
    """Messages in a template's style. Raises ``InvalidRequest`` naming the message and field at fault."""
    if not messages:
        raise InvalidRequest("messages is empty; send at least one message", "messages")
    return [_template_message(message, style, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Mapping[str, object], style: MessageStyle, where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequest(f"{where}.role must be a string; it is of type {type(role).__name__}", f"{where}.role")
    if role == "developer" and not style.has_developer_role:
        role = "system"
    text = _text(message.get("content"), f"{where}.content")
    content = [{"type": "text", "text": text}] if style.has_content_parts else text
    shown = {**message, "role": role, "content": content}
    if message.get("tool_calls") is None:
        shown.pop("tool_calls", None)
    else:
        shown["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return shown


def _text(content: object, where: str) -> str:
    """Content as one text: parts are put on lines of their own, as vLLM does; nothing is an empty text."""
    match content:
        case None:
            return ""
        case str():
            return content
        case [*parts]:
            return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))
    raise InvalidRequest(f"{where} must be text or a list of parts; it is of type {type(content).__name__}", where)


def _part_text(part: object, where: str) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            raise InvalidRequest(f"{where} is of type {kind[:40]!r} but this model reads only 'text'", where)
    raise InvalidRequest(f"{where} must be an object with a type", where)


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidRequest(f"{where} must be a list", where)
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        raise InvalidRequest(f"{where} must be an object with a function", where)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> ToolArguments:
    match arguments:
        case None | "":
            return ToolArguments({}, "{}")
        case Mapping():
            return ToolArguments(arguments, msgspec.json.encode(arguments).decode())
        case str():
            try:
                return ToolArguments(msgspec.json.decode(arguments, type=dict[str, object]), arguments)
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                raise InvalidRequest(f"{where} is not the text of a JSON object", where) from None
    raise InvalidRequest(f"{where} must be the text of a JSON object", where)
