"""Tools in OpenAI's dialect: what a client declares and chooses, and what an answer calls."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headrace.server.protocol_constraints import no_json


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A function; ``parameters`` is a JSON schema. With ``strict`` its calls are held to it."""

    name: str
    description: str | None = None
    parameters: Raw = msgspec.field(default_factory=no_json)
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """A declared tool."""

    function: FunctionDefinition
    type: str = "function"


class FunctionName(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class AllowedTool(msgspec.Struct, frozen=True):
    """One of the tools that may be called."""

    function: FunctionName | None = None
    type: str = "function"


class AllowedTools(msgspec.Struct, frozen=True):
    """Some of the declared tools; ``mode`` is ``auto`` or ``required``."""

    mode: str
    tools: list[AllowedTool]


class ToolChoice(msgspec.Struct, frozen=True):
    """A tool that must be called, or those that may be."""

    type: str
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call's function; in a stream the name comes once and ``arguments`` in pieces."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallOut(msgspec.Struct, frozen=True):
    """A call of a whole answer."""

    id: str
    function: CalledFunction
    type: str = "function"


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stream adds to the ``index``-th call; ``id`` and ``type`` come once, with the name."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
