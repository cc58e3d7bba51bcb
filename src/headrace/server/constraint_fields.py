"""From the dialects' fields for constrained output to one ``Constraint``: pure, and the only place that knows them.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and older ``guided_*``, SGLang's ``json_schema``,
``regex`` and ``ebnf`` all say the same thing in other words. A request may say it once.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.core.constraint import Constraint, ConstraintKind, Enforcement, constraint_source
from headrace.core.errors import InvalidRequest
from headrace.server.protocol_common import GenerationFields
from headrace.server.protocol_constraints import NULL, ResponseFormat, StructuredOutputs


def constraint_of(fields: GenerationFields) -> Constraint | None:
    """The form the output must have; ``None`` for free text. Raises ``InvalidRequest`` naming the field."""
    found = list(_constraints(fields))
    if len(found) > 1:
        names = " and ".join(each.param for each in found)
        raise InvalidRequest(f"{names} both say what form the output must have; send one", found[1].param)
    return found[0] if found else None


def _constraints(fields: GenerationFields) -> Iterator[Constraint]:
    if fields.response_format is not None:
        yield from _of_response_format(fields.response_format)
    if fields.structured_outputs is not None:
        yield from _of_structured_outputs(fields.structured_outputs)
    for name, kind in _FLAT_FIELDS.items():
        value = getattr(fields, name)
        if value is not None and value != NULL:
            blanks = fields.guided_whitespace_pattern if kind in _JSON_KINDS else None
            yield _constraint(kind, value, name, blanks)


def _of_response_format(asked: ResponseFormat) -> Iterator[Constraint]:
    match asked.type:
        case "text":
            return
        case "json_object":
            yield Constraint(ConstraintKind.JSON_OBJECT, param="response_format")
        case "json_schema":
            yield _of_json_schema(asked)
        case "structural_tag":
            tag = {"type": "structural_tag"} | {
                name: value
                for name, value in (
                    ("structures", asked.structures),
                    ("triggers", asked.triggers),
                    ("format", asked.format),
                )
                if value != NULL
            }
            source = msgspec.json.encode(tag).decode()
            yield Constraint(ConstraintKind.STRUCTURAL_TAG, source, param="response_format")
        case other:
            shown = other if len(other) <= 40 else other[:40] + "..."
            raise InvalidRequest(
                f"response_format.type is {shown!r} but must be text, json_object, json_schema or structural_tag",
                "response_format.type",
            )


def _of_json_schema(asked: ResponseFormat) -> Constraint:
    where = "response_format.json_schema"
    if asked.json_schema is None or asked.json_schema.schema == NULL:
        raise InvalidRequest(f"{where}.schema is missing; it is the schema that the answer must satisfy", where)
    enforcement = Enforcement.BEST_EFFORT if asked.json_schema.strict is False else Enforcement.STRICT
    source = _text(ConstraintKind.JSON_SCHEMA, asked.json_schema.schema, f"{where}.schema")
    return Constraint(ConstraintKind.JSON_SCHEMA, source, enforcement=enforcement, param=f"{where}.schema")


def _of_structured_outputs(asked: StructuredOutputs) -> Iterator[Constraint]:
    for name, kind in _STRUCTURED_FIELDS.items():
        value = getattr(asked, name)
        if value is not None and value is not False and value != NULL:
            where = f"structured_outputs.{name}"
            made = _constraint(kind, value, where, _blanks(asked))
            yield msgspec.structs.replace(made, enforcement=_enforcement(asked.enforcement))


def _blanks(asked: StructuredOutputs) -> str | None:
    """vLLM's older ``disable_any_whitespace`` is a pattern that matches nothing."""
    return "" if asked.disable_any_whitespace and asked.whitespace_pattern is None else asked.whitespace_pattern


def _constraint(kind: ConstraintKind, value: object, where: str, whitespace_pattern: str | None) -> Constraint:
    return Constraint(kind, _text(kind, value, where), whitespace_pattern, param=where)


def _text(kind: ConstraintKind, value: object, where: str) -> str:
    """A source as its field has it: schemas and tags as text or as the JSON itself, whose spelling is kept."""
    if kind is ConstraintKind.JSON_OBJECT:
        return ""
    if not isinstance(value, msgspec.Raw):
        return constraint_source(kind, value, where)
    raw = bytes(value)
    if raw.lstrip()[:1] in (b"{", b"t", b"f"):
        return raw.decode()
    return constraint_source(kind, msgspec.json.decode(raw), where)


def _enforcement(name: str | None) -> Enforcement:
    if name is None:
        return Enforcement.STRICT
    if name not in (each.value for each in Enforcement):
        raise InvalidRequest(
            f"structured_outputs.enforcement is {name[:40]!r} but must be 'strict' or 'best_effort'",
            "structured_outputs.enforcement",
        )
    return Enforcement(name)


_JSON_KINDS = (ConstraintKind.JSON_SCHEMA, ConstraintKind.JSON_OBJECT)

_STRUCTURED_FIELDS = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.EBNF,
    "lark": ConstraintKind.LARK,
    "json_object": ConstraintKind.JSON_OBJECT,
    "structural_tag": ConstraintKind.STRUCTURAL_TAG,
}

_FLAT_FIELDS = {
    "guided_json": ConstraintKind.JSON_SCHEMA,
    "guided_regex": ConstraintKind.REGEX,
    "guided_choice": ConstraintKind.CHOICE,
    "guided_grammar": ConstraintKind.EBNF,
    "json_schema": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "ebnf": ConstraintKind.EBNF,
    "structural_tag": ConstraintKind.STRUCTURAL_TAG,
}
"""vLLM's old fields and SGLang's, by the kind they name."""
