"""Types a program may ask an answer to be, as the forms a model is held to while it generates.

Owns the regexes of plain types and the reading of answers as classes of the caller's. It does not know who enforces
a form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.core.constraint import ConstraintKind, StructuredOutputsParams, constraint_source
from headrace.core.errors import InvalidRequest
from headrace.core.sampling import SamplingParams
from headrace.program.backend import Form
from headrace.program.ir import ValueType

INT_REGEX: Final = r"[-+]?[0-9]+"
FLOAT_REGEX: Final = r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?"
BOOL_REGEX: Final = r"(True|False|true|false)"
STRING_REGEX: Final = r'"[^"\n]*"'


@dataclass(frozen=True, slots=True)
class TypedForm:
    """What an answer must look like, what it is read as, and the class that it then becomes, if any."""

    value_type: ValueType
    regex: str | None = None
    json_schema: str | None = None
    kind: type | None = None


_PLAIN: Final[dict[object, TypedForm]] = {
    int: TypedForm(ValueType.INT, regex=INT_REGEX),
    float: TypedForm(ValueType.FLOAT, regex=FLOAT_REGEX),
    bool: TypedForm(ValueType.BOOL, regex=BOOL_REGEX),
    str: TypedForm(ValueType.STR, regex=STRING_REGEX),
}
_NAMES: Final = {kind.__name__: form for kind, form in _PLAIN.items() if isinstance(kind, type)}


def form_of(dtype: type | str) -> TypedForm:
    """The form of an answer that is to be of type ``dtype``: int, float, bool, str, or a class with fields."""
    form = _NAMES.get(dtype) if isinstance(dtype, str) else _PLAIN.get(dtype)
    if form is not None:
        return form
    if isinstance(dtype, str):
        raise InvalidRequest(f"dtype is {dtype!r} but must be one of {', '.join(_NAMES)}, or a class", "dtype")
    return TypedForm(ValueType.JSON, json_schema=schema_text(dtype), kind=dtype)


def schema_text(schema: str | dict[str, Any] | type) -> str:
    """A JSON schema as text. Raises ``InvalidRequest`` for a type that has none."""
    return constraint_source(ConstraintKind.JSON_SCHEMA, schema, "json_schema")


def structured_outputs(sampling: SamplingParams, form: Form) -> SamplingParams:
    """``sampling`` held to a form."""
    if form.is_free:
        return sampling
    held = StructuredOutputsParams(json=form.json_schema, regex=form.regex)
    return msgspec.structs.replace(sampling, structured_outputs=held)


def is_pydantic(kind: Any) -> bool:
    """Whether ``kind`` is a Pydantic model; that library is not ours to import."""
    return any(base.__module__.startswith("pydantic.") and base.__name__ == "BaseModel" for base in kind.__mro__)


def as_kind(value: object, kind: Any) -> object:
    """JSON's value as an instance of ``kind``. Raises ``InvalidRequest`` where it does not fit."""
    if isinstance(value, list):
        return [as_kind(each, kind) for each in value]
    try:
        if is_pydantic(kind):
            return kind.model_validate(value)
        return msgspec.convert(value, kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"the generated value is not a {kind.__name__}: {error}") from error
