"""What form an output must have: one named kind with its source.

Owns the words and the checks that need no grammar: exactly one kind, sources that are text. The kind is always
named by whoever asks and never guessed from the source: a regex that happens to be JSON stays a regex.
Compiling is ``grammar/``'s business.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from headrace.core.errors import InvalidRequest


class ConstraintKind(enum.Enum):
    """The language a constraint's source is written in.

    ``JSON_SCHEMA``: the text of a schema (draft 2020-12 and what tools emit of earlier ones). ``JSON_OBJECT``: no
    source, any JSON object. ``REGEX``: Rust regex syntax, for the whole output. ``CHOICE``: the text of a JSON
    list of strings. ``LARK``: llguidance's Lark. ``EBNF``: GBNF with a rule ``root``. ``STRUCTURAL_TAG``: the
    text of a JSON object in the dialect of vLLM and SGLang. ``ANY_TEXT``: no source and no form, for an answer of
    which only the reasoning is held to something.
    """

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"
    ANY_TEXT = "any_text"


class Enforcement(enum.Enum):
    """What to do with a keyword of a schema that cannot be enforced: refuse the request, or leave it out and warn."""

    STRICT = "strict"
    BEST_EFFORT = "best_effort"


class Reasoning(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model may write before the answer that a constraint binds: its reasoning, between two tags.

    ``is_open`` says that the prompt ends inside it; otherwise the model may open it itself, as the first thing it
    writes. After ``max_tokens`` tokens of it the closing tag is put there; ``None`` is no limit.
    """

    begin: str
    end: str
    is_open: bool = False
    max_tokens: int | None = None


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A form for one output. ``whitespace_pattern`` is a regex for the blanks of JSON; ``None`` is the default policy.

    With ``reasoning`` the form is that of what follows it. ``param`` is the field the constraint came from, in the
    caller's spelling.
    """

    kind: ConstraintKind
    source: str = ""
    whitespace_pattern: str | None = None
    enforcement: Enforcement = Enforcement.STRICT
    reasoning: Reasoning | None = None
    param: str = "structured_outputs"

    @property
    def key(self) -> Constraint:
        """What its grammar depends on."""
        tags = None if self.reasoning is None else Reasoning(self.reasoning.begin, self.reasoning.end)
        return msgspec.structs.replace(self, param="", reasoning=tags)


class StructuredOutputsParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """vLLM's ``StructuredOutputsParams``: exactly one of the first eight says what the output must be.

    ``json`` is a schema as text or a dictionary, or a type: a Pydantic model, msgspec struct, dataclass or typed
    dictionary. ``grammar`` is EBNF as in vLLM; ``lark`` is Lark. ``enforcement`` is ``"strict"`` or
    ``"best_effort"``. Raises ``InvalidRequest`` naming the field.
    """

    json: Any = None
    regex: str | None = None
    choice: Any = None
    grammar: str | None = None
    lark: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    enforcement: str = Enforcement.STRICT.value

    def __post_init__(self) -> None:
        self.constraint()

    def constraint(self) -> Constraint:
        """The constraint these fields describe."""
        given = [kind for kind, value in self._sources() if value is not None and value is not False]
        if len(given) != 1:
            names = ", ".join(name for name, _ in _KINDS.items())
            what = f"{len(given)} are given" if given else "none is given"
            raise InvalidRequest(f"structured_outputs takes exactly one of {names}; {what}", "structured_outputs")
        kind = given[0]
        value = dict(self._sources())[kind]
        where = f"structured_outputs.{next(name for name, each in _KINDS.items() if each is kind)}"
        source = "" if kind is ConstraintKind.JSON_OBJECT else constraint_source(kind, value, where)
        return Constraint(kind, source, _text(self.whitespace_pattern), self._enforcement(), param=where)

    def _sources(self) -> list[tuple[ConstraintKind, object]]:
        return [(kind, getattr(self, name)) for name, kind in _KINDS.items()]

    def _enforcement(self) -> Enforcement:
        try:
            return Enforcement(self.enforcement)
        except ValueError:
            raise InvalidRequest(
                f"structured_outputs.enforcement is {self.enforcement!r} but must be 'strict' or 'best_effort'",
                "structured_outputs.enforcement",
            ) from None


_KINDS = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.EBNF,
    "lark": ConstraintKind.LARK,
    "json_object": ConstraintKind.JSON_OBJECT,
    "structural_tag": ConstraintKind.STRUCTURAL_TAG,
}
"""Fields of ``StructuredOutputsParams`` that name a kind."""


def constraint_source(kind: ConstraintKind, value: object, where: str) -> str:
    """A source as text: schemas, choices and tags may come as values, schemas also as types.

    Raises ``InvalidRequest`` naming ``where`` for a value of the wrong sort.
    """
    if kind is ConstraintKind.CHOICE:
        return _choices(value, where)
    if isinstance(value, str):
        return value
    if kind is ConstraintKind.JSON_SCHEMA and isinstance(value, type):
        return schema_of_type(value, where)
    if kind in (ConstraintKind.JSON_SCHEMA, ConstraintKind.STRUCTURAL_TAG) and isinstance(value, dict | bool):
        return _json_text(value, where)
    raise InvalidRequest(f"{where} must be text; it is of type {type(value).__name__}", where)


def schema_of_type(kind: Any, where: str) -> str:
    """The JSON schema of a Python type as text. Pydantic's own word counts for its models, msgspec's for the rest."""
    if hasattr(kind, "model_json_schema"):
        return _json_text(kind.model_json_schema(), where)
    try:
        return _json_text(msgspec.json.schema(kind), where)
    except TypeError as error:
        raise InvalidRequest(
            f"{where} is the type {kind.__name__}, which has no JSON schema: {error}", where
        ) from error


def _choices(value: object, where: str) -> str:
    items = list(value) if isinstance(value, list | tuple) else None
    if not items or not all(isinstance(item, str) and item for item in items):
        raise InvalidRequest(f"{where} must be a list of texts, none of them empty, with at least one", where)
    return _json_text(items, where)


def _json_text(value: object, where: str) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(f"{where} cannot be written as JSON: {error}", where) from error


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest("structured_outputs.whitespace_pattern must be text", "structured_outputs.whitespace_pattern")
