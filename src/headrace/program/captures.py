"""What a program captures: values with what is known about how they came about.

Owns the reading of a generated text as a value. It does not know types of Python beyond JSON's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.program.ir import ValueType

_MAX_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Capture:
    """A value by its name; ``meta`` is SGLang's ``meta_info``."""

    value: object
    meta: dict[str, object] = field(default_factory=dict)


NOT_TAKEN = Capture(None)
"""What a capture of a branch holds that was not taken."""


def read_value(text: str, value_type: ValueType) -> object:
    """A generated text as a value. Raises ``InvalidRequest`` for a text that does not spell one."""
    stripped = text.strip()
    try:
        match value_type:
            case ValueType.STR:
                return text
            case ValueType.INT:
                return int(stripped)
            case ValueType.FLOAT:
                return float(stripped)
            case ValueType.BOOL:
                return {"true": True, "false": False}[stripped.lower()]
            case ValueType.JSON:
                return msgspec.json.decode(stripped)
    except (ValueError, KeyError, msgspec.DecodeError):
        shown = text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
        raise InvalidRequest(
            f"the generated text {shown!r} does not spell a value of type {value_type.value}"
        ) from None


def shown_text(value: object) -> str:
    """A value as it is appended to a text. Raises ``InvalidRequest`` for a list, whose form is the program's choice."""
    if isinstance(value, str):
        return value
    if value is None:
        raise InvalidRequest("the value was not captured, since its branch was not taken")
    if isinstance(value, list):
        raise InvalidRequest(f"a list of {len(value)} values cannot be appended; read it and join it as it should look")
    if isinstance(value, bool | int | float):
        return str(value)
    return msgspec.json.encode(value).decode()
