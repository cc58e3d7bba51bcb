"""From the dialect's messages to the plain dictionaries a chat template reads: pure.

Owns what a message may hold here (text), and the template's view of it: a developer speaks as the system,
parts are joined by newlines as vLLM does, and a tool call's arguments are an object, not its JSON text. It
does not know templates or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.server.protocol_chat import (
    AssistantMessage,
    ChatRequest,
    Content,
    ContentPart,
    DeveloperMessage,
    FunctionMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

MAX_MESSAGES = 4096
MAX_TOOLS = 128

TemplateMessage = dict[str, object]


def template_messages(messages: Sequence[Message]) -> list[TemplateMessage]:
    """The messages as templates read them. Raises ``InvalidRequest`` naming the message and its field."""
    if not messages:
        raise InvalidRequest("messages is empty; send at least one message", "messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has {len(messages)} entries but at most {MAX_MESSAGES} are allowed", "messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def check_features(body: ChatRequest) -> None:
    """Refuse what a chat request may ask for in OpenAI's dialect and this server does not do yet."""
    if body.response_format is not None and body.response_format.type != "text":
        raise InvalidRequest(
            f"response_format {body.response_format.type!r} is not available yet; only 'text' is", "response_format"
        )
    if body.tools is not None and len(body.tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(body.tools)} entries but at most {MAX_TOOLS} are allowed", "tools")
    if body.tools and body.tool_choice != "none":
        raise InvalidRequest("tool calling is not available yet; leave tools out or set tool_choice to 'none'", "tools")
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("tool_choice asks for a tool but tools is empty; leave it out", "tool_choice")


def _template_message(message: Message, where: str) -> TemplateMessage:
    match message:
        case SystemMessage() | DeveloperMessage():
            return _named("system", _text(message.content, where), message.name)
        case UserMessage():
            return _named("user", _text(message.content, where), message.name)
        case AssistantMessage():
            return _assistant(message, where)
        case ToolMessage():
            return _named("tool", _text(message.content, where), message.name) | _present(
                "tool_call_id", message.tool_call_id
            )
        case FunctionMessage():
            return _named("tool", "" if message.content is None else _text(message.content, where), message.name)


def _assistant(message: AssistantMessage, where: str) -> TemplateMessage:
    if message.content is None and not message.tool_calls and message.refusal is None:
        raise InvalidRequest(
            f"{where}.content is null; an assistant message needs content or tool_calls", f"{where}.content"
        )
    content = message.refusal if message.content is None else message.content
    result = _named("assistant", "" if content is None else _text(content, where), message.name)
    if message.tool_calls:
        result["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    return result | _present("reasoning_content", message.reasoning_content)


def _tool_call(call: ToolCall, where: str) -> dict[str, object]:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        param = f"{where}.function.arguments"
        raise InvalidRequest(f"{param} is not a JSON object; send the arguments as JSON text", param) from None
    return {"type": "function", "function": {"name": call.function.name, "arguments": arguments}} | _present(
        "id", call.id
    )


def _text(content: Content, where: str) -> str:
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


def _named(role: str, content: str, name: str | None) -> TemplateMessage:
    return {"role": role, "content": content} | _present("name", name)


def _present(key: str, value: str | None) -> TemplateMessage:
    return {} if value is None else {key: value}
