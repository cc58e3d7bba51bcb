"""What a program of many calls says, as data: frozen nodes that print, compare and travel as JSON.

Owns the words of the intermediate representation and its bounds. A node says what is appended to a text that grows;
``Value`` appends what is only known when the program runs. Nothing here is code, so a program from a stranger can
be run. It does not know how nodes are run, nor how Python spells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, TypeAlias, Union

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.program.reasoning import REASONING_SUFFIX, ReasoningTags

ROLES: Final = ("system", "user", "assistant")
MAX_NAME_CHARS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class ChoiceMethod(Enum):
    """How ``Select`` compares its choices; the names are SGLang's."""

    TOKEN_LENGTH_NORMALIZED = "token_length_normalized"  # noqa: S105
    GREEDY_TOKEN_SELECTION = "greedy_token_selection"  # noqa: S105
    UNCONDITIONAL_LIKELIHOOD_NORMALIZED = "unconditional_likelihood_normalized"


class JoinMode(Enum):
    """What a ``Join`` brings back from the branches of a fork; the names are SGLang's.

    ``GATHER_VARIABLE``: the captures of all branches, as lists. ``CONCATE_AND_APPEND``: their texts, one after the
    other, appended to the parent's.
    """

    GATHER_VARIABLE = "gather_variable"
    CONCATE_AND_APPEND = "concate_and_append"


class ValueType(Enum):
    """What a generated text is read as."""

    STR = "str"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    JSON = "json"


class SamplingChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling a program asks for; ``None`` leaves it to whoever runs the program."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: int | None = None

    def over(self, defaults: SamplingChoice) -> SamplingChoice:
        """This choice, with ``defaults`` where it says nothing."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(defaults, **given)


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Constant text."""

    text: str


class Value(msgspec.Struct, frozen=True, tag="value"):
    """Text known only at run time: an argument, an earlier capture, or a fork's (``"fork1.0.answer"``)."""

    name: str


class RoleBegin(msgspec.Struct, frozen=True, tag="role_begin"):
    """A message of a conversation begins; what follows is its content."""

    role: str


class RoleEnd(msgspec.Struct, frozen=True, tag="role_end"):
    """The message ends."""


class ScopeBegin(msgspec.Struct, frozen=True, tag="scope_begin"):
    """From here on, what is appended becomes a capture as well."""

    name: str


class ScopeEnd(msgspec.Struct, frozen=True, tag="scope_end"):
    """The capture ends; message ends may not lie between."""

    name: str


class Gen(msgspec.Struct, frozen=True, kw_only=True, tag="gen", omit_defaults=True):
    """Text that the model generates, captured under ``name`` if there is one.

    ``regex`` and ``json_schema`` (text of a schema) are forms it must have, ``value_type`` what it is read as. With
    ``reasoning`` what the model thinks first is a capture of its own and no part of the text.
    """

    name: str | None = None
    sampling: SamplingChoice = SamplingChoice()
    regex: str | None = None
    json_schema: str | None = None
    value_type: ValueType = ValueType.STR
    reasoning: ReasoningTags | None = None


class Select(msgspec.Struct, frozen=True, kw_only=True, tag="select", omit_defaults=True):
    """The likeliest of some texts, captured under ``name`` if there is one; nothing is generated."""

    choices: tuple[str, ...]
    name: str | None = None
    method: ChoiceMethod = ChoiceMethod.TOKEN_LENGTH_NORMALIZED


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Branches that go on from here at the same time; none of them changes the parent's text.

    Capture ``x`` of branch ``i`` is ``Value("NAME.i.x")`` outside of it.
    """

    name: str
    branches: tuple[tuple[Node, ...], ...]


class Join(msgspec.Struct, frozen=True, tag="join", omit_defaults=True):
    """Waits for the branches of an earlier fork and brings back what ``mode`` says."""

    fork: str
    mode: JoinMode = JoinMode.GATHER_VARIABLE


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """Goes on with the nodes under what was chosen; a choice without nodes goes on with none.

    ``on`` is a selection that is made here and becomes part of the text, or a value that is found elsewhere, in
    another branch of the program, and is not.
    """

    on: Select | Value
    cases: dict[str, tuple[Node, ...]]


Leaf: TypeAlias = Union[Text, Value, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Gen, Select]  # noqa: UP007
"""The nodes that have no bodies of their own."""

Node: TypeAlias = Union[Leaf, Fork, Join, Branch]  # noqa: UP007


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A whole program: ``arguments`` are the names its values may use before anything is captured."""

    name: str = "program"
    arguments: tuple[str, ...] = ()
    body: tuple[Node, ...]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a program of a stranger may be; ``num_tokens`` is what all its calls together may generate."""

    num_nodes: int = 4096
    depth: int = 8
    num_branches: int = 64
    num_tokens: int = 65536
    num_choices: int = 255
    num_text_bytes: int = 1 << 20


DEFAULT_LIMITS: Final = Limits()
DEFAULT_MAX_TOKENS: Final = 128
"""SGLang's: what a ``Gen`` may generate that says nothing."""


def to_json(program: Program) -> bytes:
    return msgspec.json.encode(program)


def from_json(data: bytes | str) -> Program:
    """Read a program. Raises ``InvalidRequest`` saying where it is none."""
    try:
        return msgspec.json.decode(data, type=Program)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"program: {error}", "program") from None


def children(node: Node) -> Iterable[tuple[Node, ...]]:
    """The bodies inside a node."""
    match node:
        case Fork():
            return node.branches
        case Branch():
            return ((node.on,), *node.cases.values())
    return ()


def walk(body: Iterable[Node], depth: int = 0) -> Iterator[tuple[Node, int]]:
    """Every node, with how deep it lies, in the order of the text."""
    for node in body:
        yield node, depth
        for inner in children(node):
            yield from walk(inner, depth + 1)


def captured_names(body: Sequence[Node]) -> Iterator[str]:
    """Names that a body may capture for the text it is appended to."""
    forks: dict[str, list[str]] = {}
    for node in body:
        match node:
            case Gen(name=str(name), reasoning=ReasoningTags()):
                yield from (name, name + REASONING_SUFFIX)
            case Gen(name=str(name)) | Select(name=str(name)) | ScopeEnd(name=name):
                yield name
            case Fork():
                forks[node.name] = [name for branch in node.branches for name in captured_names(branch)]
            case Join(mode=JoinMode.GATHER_VARIABLE):
                yield from forks.get(node.fork, ())
            case Branch():
                yield from captured_names([node.on])
                for case in node.cases.values():
                    yield from captured_names(case)


def check_name(name: str | None) -> None:
    """Raise ``InvalidRequest`` for a name that a capture, an argument or a fork cannot have."""
    if name is not None and (not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS):
        raise InvalidRequest(
            f"the name {name[:MAX_NAME_CHARS]!r} must be letters, digits, '_' and '-', begin with a letter and have at "
            f"most {MAX_NAME_CHARS} characters",
            "name",
        )


def check_choices(choices: Sequence[str]) -> None:
    """Raise ``InvalidRequest`` for what nobody can choose from."""
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequest("select needs choices: a list of texts, none of them empty", "choices")
    if len(set(choices)) < len(choices):
        raise InvalidRequest("two choices of a select are equal; each must be there once", "choices")


def check_program(program: Program, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise ``InvalidRequest`` for a program that breaks a bound or cannot mean anything, wherever it came from."""
    for argument in program.arguments:
        check_name(argument)
    check_limits(program, limits)
    for node, _ in walk(program.body):
        match node:
            case Gen() | Fork() | ScopeBegin() | ScopeEnd():
                check_name(node.name)
            case Select():
                check_name(node.name)
                check_choices(node.choices)
            case RoleBegin() if node.role not in ROLES:
                raise InvalidRequest(f"the role {node.role[:40]!r} must be one of {', '.join(ROLES)}", "program")


def check_limits(program: Program, limits: Limits) -> None:
    """Raise ``InvalidRequest`` naming the first bound that ``program`` breaks. Cost: O(nodes), stops at the bound."""
    num_tokens = num_bytes = 0
    for num_nodes, (node, depth) in enumerate(walk(program.body), start=1):
        num_bytes += _text_bytes(node)
        num_tokens += num_generated_tokens(node)
        _bound("levels of nesting", depth, limits.depth)
        _bound("nodes", num_nodes, limits.num_nodes)
        _bound("bytes of text", num_bytes, limits.num_text_bytes)
        _bound("tokens to generate", num_tokens, limits.num_tokens)
        if isinstance(node, Fork):
            _bound(f"branches in {node.name}", len(node.branches), limits.num_branches)
        if isinstance(node, Select):
            _bound("choices", len(node.choices), limits.num_choices)


def _bound(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise InvalidRequest(f"the program has {value} {what} but at most {limit} are run here; split it", "program")


def _text_bytes(node: Node) -> int:
    match node:
        case Text():
            return len(node.text.encode())
        case Select():
            return sum(len(choice.encode()) for choice in node.choices)
        case Gen():
            return len(node.regex or "") + len(node.json_schema or "")
    return 0


def num_generated_tokens(node: Node) -> int:
    """Most tokens that a node itself generates."""
    if not isinstance(node, Gen):
        return 0
    sampling = node.sampling
    return max(sampling.max_tokens or DEFAULT_MAX_TOKENS, 0) * max(sampling.n or 1, 1)


def num_path_tokens(body: Iterable[Node]) -> int:
    """Most tokens generated one after the other by a body: branches of a fork count with the longest."""
    return sum(_num_path_tokens(node) for node in body)


def _num_path_tokens(node: Node) -> int:
    match node:
        case Gen():
            return max(node.sampling.max_tokens or DEFAULT_MAX_TOKENS, 0)
        case Fork() | Branch():
            return max(map(num_path_tokens, children(node)), default=0)
    return 0


def num_calls_at_once(body: Iterable[Node]) -> int:
    """Most calls that a body makes at the same time."""
    return max((_num_calls_at_once(node) for node in body), default=0)


def _num_calls_at_once(node: Node) -> int:
    match node:
        case Gen():
            return max(node.sampling.n or 1, 1)
        case Select():
            return len(node.choices)
        case Fork():
            return sum(map(num_calls_at_once, node.branches))
        case Branch():
            return max(map(num_calls_at_once, children(node)))
    return 0
