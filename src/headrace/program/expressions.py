"""How a program writes what it appends: ``gen``, ``select``, the roles, and ``+`` between them and text.

Owns SGLang's names and arguments for them. It does not know how anything is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Union, Unpack

from msgspec.structs import replace

from headrace.core.errors import InvalidRequest
from headrace.program.forms import TypedForm, form_of, schema_text
from headrace.program.ir import (
    ChoiceMethod,
    Gen,
    Node,
    RoleBegin,
    RoleEnd,
    SamplingChoice,
    Select,
    Text,
    ValueType,
    check_choices,
    check_name,
)
from headrace.program.placeholders import Placeholder, check_constant
from headrace.program.reasoning import tags_of

Appendable: TypeAlias = Union["Expression", str, Placeholder, None]


class GenOptions(TypedDict, total=False):
    """The keywords of ``gen``: SGLang's. ``None`` leaves a choice to whoever runs the program."""

    min_tokens: int | None
    n: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    ignore_eos: bool | None
    seed: int | None
    dtype: type | str | None
    choices: Sequence[str] | None
    choices_method: ChoiceMethod | str
    regex: str | None
    json_schema: str | dict[str, Any] | type | None


@dataclass(frozen=True, slots=True)
class Expression:
    """Nodes to be appended; ``kinds`` are the classes that captures become, by name."""

    nodes: tuple[Node, ...]
    kinds: tuple[tuple[str, type], ...] = ()

    def __add__(self, other: Appendable) -> Expression:
        more = expression(other)
        return Expression(self.nodes + more.nodes, self.kinds + more.kinds)

    def __radd__(self, other: Appendable) -> Expression:
        return expression(other) + self


def expression(value: object) -> Expression:
    """What may be appended, as an expression. Raises ``InvalidRequest`` for anything else."""
    match value:
        case Expression():
            return value
        case "" | None:
            return Expression(())
        case str() | Placeholder():
            return Expression((Text(str(value)),))
    raise InvalidRequest(
        f"a program appends text, gen(), select() and messages, not a value of type {type(value).__name__}; "
        "use str() on it"
    )


def gen(name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]) -> Expression:
    """Text that the model generates, to be read as ``s[name]``.

    ``choices`` makes it a ``select``. ``regex``, ``json_schema`` and ``dtype`` (int, float, bool, str, or a class
    with fields) are forms it must have; a ``dtype`` is also what it is read as. ``n`` above 1 captures a list.
    """
    choices, method = options.get("choices"), options.get("choices_method")
    if choices is not None:
        return select(name, choices, choices_method=method or ChoiceMethod.TOKEN_LENGTH_NORMALIZED)
    check_name(name)
    form = _form(options)
    node = Gen(
        name=name,
        sampling=_sampling(max_tokens, options),
        regex=form.regex,
        json_schema=form.json_schema,
        value_type=form.value_type,
    )
    kinds = ((node.name, form.kind),) if node.name is not None and form.kind is not None else ()
    return Expression((node,), kinds)


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]) -> Expression:
    """An integer."""
    options["dtype"] = int
    return gen(name, max_tokens, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]) -> Expression:
    """A text between double quotes, which are part of it."""
    options["dtype"] = str
    return gen(name, max_tokens, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] = (),
    temperature: float = 0.0,
    choices_method: ChoiceMethod | str = ChoiceMethod.TOKEN_LENGTH_NORMALIZED,
) -> Expression:
    """The likeliest of ``choices``, to be read as ``s[name]``. ``temperature`` is SGLang's and must be 0."""
    if temperature != 0.0:
        raise InvalidRequest(f"select has temperature {temperature}, but it always takes the likeliest; leave it out")
    check_choices(choices)
    check_name(name)
    for choice in choices:
        check_constant(choice, "a choice")
    return Expression((Select(choices=tuple(choices), name=name, method=_method(choices_method)),))


def separate_reasoning(content: Appendable, model_type: str) -> Expression:
    """``content`` of a model that thinks before it answers: its thoughts are captured under the names of its ``gen``
    with ``_reasoning_content`` after them, and left out of the text. ``model_type`` is SGLang's name of a family."""
    tags = tags_of(model_type)
    whole = expression(content)
    nodes = tuple(replace(node, reasoning=tags) if isinstance(node, Gen) else node for node in whole.nodes)
    return Expression(nodes, whole.kinds)


def system(content: Appendable = None) -> Expression:
    """A system message."""
    return role("system", content)


def user(content: Appendable = None) -> Expression:
    """A user's message."""
    return role("user", content)


def assistant(content: Appendable = None) -> Expression:
    """An assistant's message; ``gen`` inside of it answers what stands before."""
    return role("assistant", content)


def role(name: str, content: Appendable) -> Expression:
    """A message by ``name``."""
    return role_begin(name) + content + role_end()


def role_begin(name: str) -> Expression:
    return Expression((RoleBegin(name),))


def role_end() -> Expression:
    return Expression((RoleEnd(),))


def system_begin() -> Expression:
    return role_begin("system")


def system_end() -> Expression:
    return role_end()


def user_begin() -> Expression:
    return role_begin("user")


def user_end() -> Expression:
    return role_end()


def assistant_begin() -> Expression:
    return role_begin("assistant")


def assistant_end() -> Expression:
    return role_end()


def _form(options: GenOptions) -> TypedForm:
    dtype, regex, schema = options.get("dtype"), options.get("regex"), options.get("json_schema")
    if sum(value is not None for value in (dtype, regex, schema)) > 1:
        raise InvalidRequest("gen takes one of dtype, regex and json_schema", "dtype")
    if dtype is not None:
        return form_of(dtype)
    if regex is not None:
        check_constant(regex, "a regex")
    return TypedForm(ValueType.STR, regex, None if schema is None else schema_text(schema))


def _sampling(max_tokens: int | None, options: GenOptions) -> SamplingChoice:
    stop, token_ids = options.get("stop"), options.get("stop_token_ids")
    stops = None if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stops or ():
        check_constant(text, "a stop string")
    return SamplingChoice(
        max_tokens=max_tokens,
        min_tokens=options.get("min_tokens"),
        n=options.get("n"),
        stop=stops,
        stop_token_ids=None if token_ids is None else tuple(token_ids),
        temperature=options.get("temperature"),
        top_p=options.get("top_p"),
        top_k=options.get("top_k"),
        min_p=options.get("min_p"),
        frequency_penalty=options.get("frequency_penalty"),
        presence_penalty=options.get("presence_penalty"),
        repetition_penalty=options.get("repetition_penalty"),
        ignore_eos=options.get("ignore_eos"),
        seed=options.get("seed"),
    )


def _method(method: ChoiceMethod | str) -> ChoiceMethod:
    try:
        return ChoiceMethod(method)
    except ValueError:
        known = ", ".join(each.value for each in ChoiceMethod)
        raise InvalidRequest(f"choices_method is {method!r} but must be one of {known}", "choices_method") from None
