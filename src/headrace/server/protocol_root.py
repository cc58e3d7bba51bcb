"""Bodies of the routes that do not generate: models, tokenizer, version."""

from __future__ import annotations

import msgspec

from headrace.server.json_body import BodyType
from headrace.server.protocol_chat import Message, TemplateValue


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object with vLLM's ``root`` and ``max_model_len``."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``GET /v1/models``."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /tokenize``: a text as ``prompt``, or a conversation as ``messages``."""

    prompt: str | None = None
    messages: list[Message] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, TemplateValue] | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``POST /tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True):
    """Reply of ``POST /detokenize``."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``GET /tokenizer_info``: what evaluation tools ask of a remote tokenizer."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


class Version(msgspec.Struct, frozen=True):
    """Reply of ``GET /version``."""

    version: str


class Health(msgspec.Struct, frozen=True):
    """Reply of the health routes; the HTTP status says the same."""

    status: str


TOKENIZE_BODY = BodyType(TokenizeRequest)
DETOKENIZE_BODY = BodyType(DetokenizeRequest)
