"""OpenAI's legacy ``/v1/completions`` dialect: its bodies and nothing else."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from headrace.server.json_body import BodyType, Unsupported
from headrace.server.protocol_common import UNSUPPORTED_FIELDS, GenerationFields, PromptLogprobs, UsageBody

Prompt = str | list[str | int | list[int]]
"""Text, texts, token ids or lists of token ids; a mixture is refused when the prompt is read."""


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """Body of ``POST /v1/completions``."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """One entry per token; ``text_offset`` counts characters from the start of the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a reply, or one piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The whole reply."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    warnings: list[str] | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; ``usage`` is present only when usage was asked for."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


COMPLETION_BODY = BodyType(
    CompletionRequest,
    UNSUPPORTED_FIELDS
    | {
        "suffix": Unsupported("fill-in-the-middle is not available; put the text into the prompt", (None, "")),
    },
)
