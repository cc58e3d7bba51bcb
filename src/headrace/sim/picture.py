"""Goodput over load as an SVG that fits light and dark pages and needs nothing but itself."""

from __future__ import annotations

import html
from collections.abc import Sequence

from headrace.sim.report import SimulationReport

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 48, 48

_STYLE = """
svg { --ink: #1d2330; --soft: #667085; --line: #d9dce4; --paper: #fbfbfd; --c0: #1f5fd0; --c1: #c4540a; --c2: #177a4b;
  --c3: #8a3fb0; --c4: #a3123f; --c5: #5b6472; }
@media (prefers-color-scheme: dark) { svg { --ink: #e7e9ee; --soft: #98a2b3; --line: #333946; --paper: #14171d;
  --c0: #7aa7ff; --c1: #ff9f5a; --c2: #5fd39a; --c3: #cf9bec; --c4: #ff7d9c; --c5: #aab2c0; } }
text { font: 13px system-ui, sans-serif; fill: var(--ink); } .soft { fill: var(--soft); }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2.5; } .title { font-weight: 600; font-size: 15px; }
"""
_NUM_COLOURS = 6
_MARKS = ("M-4-4h8v8h-8z", "M0-5L5 4H-5z", "M0-5L5 0L0 5L-5 0z", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z")
"""Curves differ by mark as well as by colour, for readers who cannot tell colours apart."""


def goodput_picture(reports: Sequence[SimulationReport]) -> str:
    """One curve for each policy, one mark for each load."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for report in reports:
        curves.setdefault(report.policy, []).append((report.load, report.total.goodput))
    loads = sorted({report.load for report in reports})
    parts = [*_frame(loads), *_labels()]
    for number, (policy, points) in enumerate(curves.items()):
        parts += _curve(number, policy, sorted(points), loads[-1])
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Goodput over load">\n<style>{_STYLE}</style>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="var(--paper)"/>\n{body}\n</svg>\n'
    )


def _x(load: float, largest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * load / largest


def _y(goodput: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * goodput


def _frame(loads: Sequence[float]) -> list[str]:
    parts = []
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for load in loads:
        x, y = _x(load, loads[-1]), HEIGHT - BOTTOM
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{y + 19}" text-anchor="middle">{load:g}</text>')
    return parts


def _labels() -> list[str]:
    return [
        f'<text class="title" x="{LEFT}" y="22">Goodput: requests within all their targets, of all offered</text>',
        f'<text class="soft" x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">load, times the trace</text>',
    ]


def _curve(number: int, policy: str, points: Sequence[tuple[float, float]], largest: float) -> list[str]:
    colour = f"var(--c{number % _NUM_COLOURS})"
    mark = _MARKS[number % len(_MARKS)]
    places = [(_x(load, largest), _y(goodput)) for load, goodput in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="curve" stroke="{colour}" points="{line}"/>']
    for (x, y), (load, goodput) in zip(places, points, strict=True):
        title = f"<title>{html.escape(policy)} at {load:g}: {goodput:.1%}</title>"
        parts.append(f'<path d="{mark}" transform="translate({x:.1f} {y:.1f})" fill="{colour}">{title}</path>')
    legend_x = LEFT + 120 * number
    parts.append(f'<path d="{mark}" transform="translate({legend_x + 6} 37)" fill="{colour}"/>')
    parts.append(f'<text x="{legend_x + 16}" y="41">{html.escape(policy)}</text>')
    return parts
