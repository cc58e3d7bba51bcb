"""Bodies of ``POST /v1/programs``."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.program.ir import Program
from headrace.server.json_body import BodyType
from headrace.server.protocol_common import PromptTokensDetails, WorkBody


class ProgramRequest(WorkBody, frozen=True, kw_only=True):
    """A program as data, its arguments, and the sampling where it says nothing itself."""

    program: Program
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    stream: bool | None = None

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None

    priority: int | None = None
    service_tier: str | None = None
    user: str | None = None


class ProgramUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What all calls of the program cost together, without cases that were begun on a guess and called off."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    guesses: int
    right_guesses: int


class CaptureBody(msgspec.Struct, frozen=True, kw_only=True):
    """A captured value; ``meta`` says how it came about."""

    value: Any
    meta: dict[str, Any]


class ProgramResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Captures by their paths (``fork1.0.answer``), and the whole text with the messages it is made of."""

    id: str
    model: str
    captures: dict[str, CaptureBody]
    text: str
    messages: list[dict[str, str]]
    usage: ProgramUsage
    object: str = "program"


class TextEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """More of what is being generated for a capture."""

    name: str
    delta: str


class CaptureEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="capture"):
    """A capture is whole."""

    name: str
    value: Any
    meta: dict[str, Any]


class DoneEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="done"):
    """The program has ended."""

    response: ProgramResponse


PROGRAM_BODY = BodyType(ProgramRequest)
