"""A program as a picture: its nodes, its branches, and which of its text is shared.

Owns two drawings of the same walk, text and SVG. What stands before the first value, generation or selection is the
same in every run and is computed once for all of them; what stands before a fork is shared by its branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from headrace.program.ir import (
    Branch,
    Fork,
    Gen,
    Join,
    Node,
    Program,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
    Value,
)

_MAX_SHOWN_CHARS = 44

CONSTANT_MARK = "="
SHARED_MARK = "|"

_BOX_WIDTH, _BOX_HEIGHT, _GAP = 300, 26, 14
_COLORS = {"constant": "#d8ecd8", "shared": "#dbe6f5", "own": "#f4f4f4", "call": "#fbe3c8"}


@dataclass(frozen=True, slots=True)
class Step:
    """One node, as it is shown. ``columns`` are the bodies it leads into, each with its title."""

    label: str
    is_constant: bool
    is_call: bool
    columns: tuple[tuple[str, tuple[Step, ...]], ...] = field(default=())


def steps(program: Program) -> tuple[Step, ...]:
    """The steps of a whole program."""
    return _Walk().steps(program.body)


class _Walk:
    """Remembers whether everything so far was constant."""

    def __init__(self) -> None:
        self._is_constant = True

    def steps(self, body: Sequence[Node]) -> tuple[Step, ...]:
        return tuple(self._step(node) for node in body)

    def _step(self, node: Node) -> Step:
        if isinstance(node, Value | Gen | Select | Branch):
            self._is_constant = False
        is_constant = self._is_constant and not isinstance(node, Fork | Join)
        is_call = isinstance(node, Gen | Select | Branch)
        match node:
            case Fork():
                bodies = [(f"{node.name}.{index}", body) for index, body in enumerate(node.branches)]
            case Branch():
                bodies = list(node.cases.items())
            case _:
                bodies = []
        columns = []
        for title, body in bodies:
            walk = _Walk()
            walk._is_constant = self._is_constant
            columns.append((title, walk.steps(body)))
        return Step(_label(node), is_constant, is_call, tuple(columns))


def _label(node: Node) -> str:
    match node:
        case Text():
            return f"text {_shown(node.text)}"
        case Value():
            return f"value of {node.name}"
        case Gen():
            return f"gen {node.name or ''}".rstrip() + _gen_details(node)
        case Select():
            return f"select {node.name or ''}".rstrip() + f" of {', '.join(node.choices)}"
        case RoleBegin() | RoleEnd() | ScopeBegin() | ScopeEnd():
            return _boundary(node)
        case Fork():
            return f"{node.name}: {len(node.branches)} branches share all above"
        case Join():
            return f"join {node.fork}, {node.mode.value}"
        case Branch():
            return f"branch by {_label(node.on)}"


def _boundary(node: RoleBegin | RoleEnd | ScopeBegin | ScopeEnd) -> str:
    match node:
        case RoleBegin():
            return f"{node.role} begins"
        case RoleEnd():
            return "message ends"
    return f"capture {node.name} {'begins' if isinstance(node, ScopeBegin) else 'ends'}"


def _gen_details(node: Gen) -> str:
    limit = "" if node.sampling.max_tokens is None else f", at most {node.sampling.max_tokens} tokens"
    form = ", regex" if node.regex is not None else ", JSON" if node.json_schema is not None else ""
    return limit + form


def _shown(text: str) -> str:
    flat = text.replace("\n", "\\n")
    return f'"{flat}"' if len(flat) <= _MAX_SHOWN_CHARS else f'"{flat[: _MAX_SHOWN_CHARS - 3]}..."'


# -- text ------------------------------------------------------------------------------------------------


def as_text(program: Program) -> str:
    """The program as indented lines, with a legend of the marks in front of them."""
    head = f"{program.name}({', '.join(program.arguments)})"
    legend = [
        f"{CONSTANT_MARK} the same in every run: computed once for all",
        f"{SHARED_MARK} shared by the branches that follow it",
    ]
    return "\n".join([head, *_lines(steps(program), 0), "", *legend])


def _lines(body: Sequence[Step], depth: int) -> Iterator[str]:
    last_fork = max((index for index, step in enumerate(body) if step.columns), default=-1)
    for index, step in enumerate(body):
        mark = CONSTANT_MARK if step.is_constant else SHARED_MARK if index < last_fork else " "
        yield f"{mark} {'    ' * depth}{step.label}"
        for title, inner in step.columns:
            yield f"  {'    ' * depth}  {title}"
            yield from _lines(inner, depth + 1)


# -- SVG -------------------------------------------------------------------------------------------------


def as_svg(program: Program) -> str:
    """The program as a drawing: downwards in the order of the text, branches side by side."""
    body = steps(program)
    width, height = _columns(body) * (_BOX_WIDTH + _GAP) + _GAP, _height(body) + 3 * _GAP + _BOX_HEIGHT
    title = escape(f"{program.name}({', '.join(program.arguments)})")
    shapes = "\n".join(_draw(body, _GAP, 2 * _GAP + _BOX_HEIGHT))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n<title>{title}</title>\n'
        f'<text x="{_GAP}" y="{_GAP + 12}" font-weight="bold">{title}</text>\n{shapes}\n</svg>\n'
    )


def _columns(body: Sequence[Step]) -> int:
    """How many boxes stand side by side at most."""
    return max((sum(_columns(inner) for _, inner in step.columns) for step in body if step.columns), default=1)


def _height(body: Sequence[Step]) -> int:
    return sum(_BOX_HEIGHT + _GAP + _inner_height(step) for step in body)


def _inner_height(step: Step) -> int:
    return max((_BOX_HEIGHT + _height(inner) for _, inner in step.columns), default=0)


def _draw(body: Sequence[Step], x: int, y: int) -> Iterator[str]:
    last_fork = max((index for index, step in enumerate(body) if step.columns), default=-1)
    for index, step in enumerate(body):
        kind = "call" if step.is_call else "constant" if step.is_constant else "shared" if index < last_fork else "own"
        yield (
            f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="4" fill="{_COLORS[kind]}" '
            f'stroke="#888"/><text x="{x + 8}" y="{y + 17}">{escape(step.label)}</text>'
        )
        y += _BOX_HEIGHT + _GAP
        column_x = x
        for title, inner in step.columns:
            yield f'<text x="{column_x + 8}" y="{y + 12}" fill="#555">{escape(title)}</text>'
            yield from _draw(inner, column_x, y + _BOX_HEIGHT)
            column_x += _columns(inner) * (_BOX_WIDTH + _GAP)
        y += _inner_height(step)
