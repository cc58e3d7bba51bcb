"""From the dialect's messages to the plain dictionaries a chat template reads: pure.

Owns what a message may hold here (text) and names what it may not. It does not know templates: how a
developer, parts or a tool call's arguments look to one is the template's side's affair.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.server.protocol_chat import (
    AssistantMessage,
    Content,
    ContentPart,
    DeveloperMessage,
    FunctionMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)

TemplateMessage = dict[str, object]

_ROLES = {
    SystemMessage: "system",
    DeveloperMessage: "developer",
    UserMessage: "user",
    ToolMessage: "tool",
    FunctionMessage: "tool",
}


def template_messages(messages: Sequence[Message]) -> list[TemplateMessage]:
    """The messages as templates read them. Raises ``InvalidRequest`` naming the message and its field."""
    if not messages:
        raise InvalidRequest("messages is empty; send at least one message", "messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> TemplateMessage:
    if isinstance(message, AssistantMessage):
        return _assistant(message, where)
    content = "" if message.content is None else _text(message.content, where)
    shown: TemplateMessage = {"role": _ROLES[type(message)], "content": content} | _present("name", message.name)
    return shown | _present("tool_call_id", message.tool_call_id) if isinstance(message, ToolMessage) else shown


def _assistant(message: AssistantMessage, where: str) -> TemplateMessage:
    content = message.refusal if message.content is None else _text(message.content, where)
    if content is None and not message.tool_calls:
        raise InvalidRequest(
            f"{where}.content is null; an assistant message needs content or tool_calls", f"{where}.content"
        )
    shown: TemplateMessage = {"role": "assistant", "content": content or ""} | _present("name", message.name)
    if message.tool_calls:
        shown["tool_calls"] = [msgspec.to_builtins(call) for call in message.tool_calls]
    return shown | _present("reasoning_content", message.reasoning_content)


def _text(content: Content, where: str) -> str:
    """Content as one text; parts are put on lines of their own, as vLLM does."""
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part_text(part: ContentPart, where: str) -> str:
    if part.type != "text":
        shown = part.type if len(part.type) <= 40 else part.type[:40] + "..."
        raise InvalidRequest(f"{where}.type is {shown!r} but only 'text' parts are taken here", f"{where}.type")
    if part.text is None:
        raise InvalidRequest(f"{where}.text is missing; a text part needs it", f"{where}.text")
    return part.text


def _present(key: str, value: str | None) -> TemplateMessage:
    return {} if value is None else {key: value}
