"""The fields that say what form an output must have, as OpenAI, vLLM and SGLang spell them."""

from __future__ import annotations

import msgspec
from msgspec import Raw

NULL = Raw(b"null")
"""A field of any JSON that was not given."""


def no_json() -> Raw:
    """The default of such fields; a factory, because a schema generator cannot write raw JSON as a default."""
    return NULL


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """OpenAI's ``json_schema``. With ``strict`` false, keywords that cannot be enforced are left out with a warning."""

    name: str | None = None
    description: str | None = None
    schema: Raw = msgspec.field(default_factory=no_json)
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's ``response_format``, with vLLM's and SGLang's ``structural_tag``."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: Raw = msgspec.field(default_factory=no_json)
    triggers: Raw = msgspec.field(default_factory=no_json)
    format: Raw = msgspec.field(default_factory=no_json)


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's ``structured_outputs``; ``lark`` and ``enforcement`` are additions. Exactly one kind may be given."""

    json: Raw = msgspec.field(default_factory=no_json)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    lark: str | None = None
    json_object: bool | None = None
    structural_tag: Raw = msgspec.field(default_factory=no_json)
    whitespace_pattern: str | None = None
    enforcement: str | None = None
    disable_any_whitespace: bool | None = None
