"""OpenAI's ``/v1/chat/completions`` dialect: its bodies and nothing else."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from headrace.server.json_body import BodyType, Unsupported
from headrace.server.protocol_common import UNSUPPORTED_FIELDS, GenerationFields, PromptLogprobs, UsageBody
from headrace.server.protocol_tools import CallDelta, CallOut, Tool, ToolChoice

TemplateValue = str | int | float | bool | None


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content. Only text is taken; other types are refused by name."""

    type: str
    text: str | None = None


Content = str | list[ContentPart]


class FunctionCall(msgspec.Struct, frozen=True):
    """``arguments`` is a JSON object as text."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, frozen=True):
    """A call the assistant made in an earlier turn."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions of the application."""

    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    """OpenAI's newer name for a system message."""

    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """What the user said."""

    content: Content
    name: str | None = None


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the model answered earlier; content may be absent when it only called tools."""

    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered to ``tool_call_id``."""

    content: Content
    tool_call_id: str | None = None
    name: str | None = None


class FunctionMessage(msgspec.Struct, frozen=True, tag_field="role", tag="function"):
    """OpenAI's older form of a tool's answer."""

    content: Content | None
    name: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class ReasoningFields(msgspec.Struct, frozen=True):
    """OpenRouter's ``reasoning``: the budget of tokens, or the effort in words as the template knows them."""

    max_tokens: int | None = None
    effort: str | None = None
    exclude: bool | None = None


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, TemplateValue] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningFields | None = None

    # taken and without effect here
    verbosity: str | None = None
    stream_reasoning: bool | None = None


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token at some position; ``bytes`` are exact where ``token`` is not valid text alone."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """The token chosen at some position, and the likeliest ones there."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a message's tokens."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """The model's answer; ``content`` is null where it only called tools."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallOut] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a whole reply."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The whole reply."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stream adds to the message: the role once, then reasoning, content and calls."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice's share of an event."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; ``usage`` is present only when usage was asked for."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


_TOOLS = "use tools and tool_choice"
_MEDIA = "only text is taken and given"

CHAT_BODY = BodyType(
    ChatRequest,
    UNSUPPORTED_FIELDS
    | {
        "functions": Unsupported(_TOOLS, (None, [])),
        "function_call": Unsupported(_TOOLS, (None, "none", "auto")),
        "modalities": Unsupported(_MEDIA, (None, [], ["text"])),
        "audio": Unsupported(_MEDIA, (None,)),
        "mm_processor_kwargs": Unsupported(_MEDIA, (None, {})),
        "media_io_kwargs": Unsupported(_MEDIA, (None, {})),
        "prediction": Unsupported("leave it out", (None,)),
        "web_search_options": Unsupported("this server fetches nothing; leave it out", (None,)),
        "documents": Unsupported("put documents into messages", (None, [])),
        "chat_template": Unsupported("the operator chooses the template with --chat-template", (None, "")),
        "add_special_tokens": Unsupported("the chat template writes them"),
        "echo": Unsupported("use /v1/completions"),
        "suffix": Unsupported("fill-in-the-middle is not available", (None, "")),
        "best_of": Unsupported("sample with n and pick", (None, 1)),
    },
)
