"""An automaton as text, DOT and SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from headrace.grammar.explain import Automaton, Edge

_MAX_LABEL_CHARS = 28
_COLUMN, _ROW, _RADIUS = 230, 70, 16


def render_text(automaton: Automaton, tokens: Mapping[int, Sequence[str]]) -> str:
    """One block a state; ``tokens`` are the first tokens of a model that may come there, if one was asked."""
    lines = []
    for state in automaton.states:
        forced = len(state.edges) == 1 and bool(state.edges[0].text) and not state.may_end
        mark = "  may end" if state.may_end else "  forced" if forced else ""
        lines.append(f"state {state.number}{mark}")
        lines += [f"  {label(edge):<{_MAX_LABEL_CHARS}}  -> {edge.target}" for edge in state.edges]
        if state.number in tokens:
            lines.append(f"  tokens: {' '.join(tokens[state.number])}")
    num_edges = sum(len(state.edges) for state in automaton.states)
    end = "; cut: the grammar has more states, perhaps without end" if automaton.is_cut else ""
    return "\n".join([*lines, "", f"{len(automaton.states)} states, {num_edges} edges{end}"])


def render_dot(automaton: Automaton) -> str:
    """For graphviz."""
    lines = ["digraph grammar {", "  rankdir=LR;", '  node [shape=circle, fontname="sans-serif"];']
    for state in automaton.states:
        if state.may_end:
            lines.append(f"  {state.number} [shape=doublecircle];")
        for edge in state.edges:
            text = label(edge).replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {state.number} -> {edge.target} [label="{text}"];')
    return "\n".join([*lines, "}"])


def render_svg(automaton: Automaton) -> str:
    """A picture with states in columns by how far they are from the beginning."""
    places = _places(automaton)
    width = max((x for x, _ in places.values()), default=0) + _COLUMN
    height = max((y for _, y in places.values()), default=0) + _ROW
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for state in automaton.states:
        here = places[state.number]
        body += [_arrow(here, places[edge.target], label(edge)) for edge in state.edges]
    for state in automaton.states:
        x, y = places[state.number]
        body.append(f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="white" stroke="black"/>')
        if state.may_end:
            body.append(f'<circle cx="{x}" cy="{y}" r="{_RADIUS - 4}" fill="none" stroke="black"/>')
        body.append(f'<text x="{x}" y="{y + 4}" text-anchor="middle">{state.number}</text>')
    return "\n".join([*body, "</svg>"])


def label(edge: Edge) -> str:
    """An edge's bytes as a person reads them: a text, or ranges of characters."""
    if edge.text:
        shown = edge.text.decode("utf-8", "backslashreplace")
        return shown if len(shown) <= _MAX_LABEL_CHARS else shown[: _MAX_LABEL_CHARS - 3] + "..."
    ranges = [_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in _ranges(edge.any_of)]
    text = f"[{' '.join(ranges)}]"
    return text if len(text) <= _MAX_LABEL_CHARS else f"any of {len(edge.any_of)} bytes"


def _char(byte: int) -> str:
    names = {9: "\\t", 10: "\\n", 13: "\\r", 32: "space", 92: "\\\\"}
    return names.get(byte, chr(byte) if 33 <= byte < 127 else f"x{byte:02x}")


def _ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for value in sorted(values):
        if found and found[-1][1] == value - 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found


def _places(automaton: Automaton) -> dict[int, tuple[int, int]]:
    """Centres of the states: a column for each distance from the beginning."""
    distance = {0: 0}
    for state in automaton.states:
        for edge in state.edges:
            distance.setdefault(edge.target, distance.get(state.number, 0) + 1)
    rows: dict[int, int] = {}
    places = {}
    for state in automaton.states:
        column = distance.get(state.number, 0)
        rows[column] = rows.get(column, 0) + 1
        places[state.number] = (40 + column * _COLUMN, rows[column] * _ROW)
    return places


def _arrow(start: tuple[int, int], end: tuple[int, int], text: str) -> str:
    (x1, y1), (x2, y2) = start, end
    shown = escape(text)
    if start == end:
        loop = f"M{x1 - 8} {y1 - 14}C{x1 - 24} {y1 - 48} {x1 + 24} {y1 - 48} {x1 + 8} {y1 - 14}"
        at = f'<text x="{x1}" y="{y1 - 42}" text-anchor="middle">{shown}</text>'
    else:
        bend = 0 if x2 > x1 else 40
        loop = f"M{x1 + _RADIUS} {y1}Q{(x1 + x2) // 2} {(y1 + y2) // 2 + bend} {x2 - _RADIUS} {y2}"
        at = f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 + bend // 2 - 5}" text-anchor="middle">{shown}</text>'
    return f'<path d="{loop}" fill="none" stroke="gray" marker-end="url(#tip)"/>{at}'
