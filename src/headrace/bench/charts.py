"""Pictures as inline SVG: lines, steps, bars; axes with round numbers, colours of the page. Knows no benchmark."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 34
MAX_POINTS = 600
NUM_COLOURS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A named line; points by growing x. ``is_marked`` shows each as a dot; not ``is_joined``, as dots alone."""

    name: str
    points: Sequence[Point]
    is_marked: bool = False
    is_joined: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """``is_log`` spaces by factors; values must then be above 0."""

    label: str
    is_log: bool = False
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places along one side of a picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.is_log else round_ticks(self.low, self.high)


def line_chart(caption: str, series: Sequence[Series], x: Axis, y: Axis, note: str = "") -> str:
    """A figure of lines with a legend; with nothing to show, a sentence that says so."""
    shown = [one for one in series if one.points]
    if not shown:
        return _figure(caption, "<p>Nothing was measured.</p>", note)
    points = [point for one in shown for point in one.points]
    across = _scale([point[0] for point in points], x, LEFT, WIDTH - RIGHT)
    up = _scale([0.0, *(point[1] for point in points)], y, HEIGHT - BOTTOM, TOP)
    parts = [_axes(across, up, x, y)]
    for number, one in enumerate(shown):
        parts.append(_line(one, number, across, up))
    legend = _legend([one.name for one in shown]) if len(shown) > 1 else ""
    return _figure(caption, _svg(caption, parts) + legend, note)


def bar_chart(caption: str, bars: Sequence[tuple[str, float]], y: Axis, x_label: str, note: str = "") -> str:
    """A figure of bars side by side; as many of their names are written as have room."""
    if not any(value for _, value in bars):
        return _figure(caption, "<p>Nothing was measured.</p>", note)
    up = _scale([1.0 if y.is_log else 0.0, *(value for _, value in bars)], y, HEIGHT - BOTTOM, TOP)
    across = Scale(0, len(bars), LEFT, WIDTH - RIGHT, is_log=False)
    parts = [_grid(up, y), _text(WIDTH / 2, HEIGHT - 4, x_label, "middle")]
    every = max(1, math.ceil(len(bars) / 8))
    width = (WIDTH - LEFT - RIGHT) / len(bars)
    for number, (name, value) in enumerate(bars):
        left = across.at(number)
        if value > 0:
            top = up.at(value)
            title = f"<title>{html.escape(name)}: {_short(value)}</title>"
            shape = (
                f'x="{left + 1:.1f}" y="{top:.1f}" width="{max(width - 2, 1):.1f}" height="{HEIGHT - BOTTOM - top:.1f}"'
            )
            parts.append(f'<rect class="s0" stroke="none" {shape}>{title}</rect>')
        if number % every == 0:
            parts.append(_text(left + width / 2, HEIGHT - BOTTOM + 14, name, "middle"))
    return _figure(caption, _svg(caption, parts), note)


def round_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About ``wanted`` round numbers in [low, high]: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
    return ticks if len(ticks) > 2 else round_ticks(low, high)


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> Scale:
    if axis.is_log:
        positive = [value for value in values if value > 0]
        low, high = min(positive), max(positive)
        return Scale(low / 1.05, max(high, low * 1.5) * 1.05, start, end, is_log=True)
    low = min(0.0, *values) if min(values) < max(values) / 2 else min(values)
    high = axis.limit if axis.limit is not None else max(values)
    return Scale(low, high * 1.03 if high > low else low + 1, start, end, is_log=False)


def _axes(across: Scale, up: Scale, x: Axis, y: Axis) -> str:
    parts = [_grid(up, y)]
    for tick in across.ticks():
        at = across.at(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 14, _short(tick), "middle"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 4, x.label, "middle"))
    return "".join(parts)


def _grid(up: Scale, y: Axis) -> str:
    parts = []
    for tick in up.ticks():
        at = up.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 5, at + 4, _short(tick), "end"))
    place = f'transform="translate(11 {(HEIGHT - BOTTOM + TOP) / 2:.0f}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {place}>{html.escape(y.label)}</text>")
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    return "".join(parts)


def _line(series: Series, number: int, across: Scale, up: Scale) -> str:
    colour = f"s{number % NUM_COLOURS}"
    points = _thinned(series.points)
    path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
    parts = [f'<polyline class="line {colour}" style="fill:none" points="{path}"/>'] if series.is_joined else []
    if series.is_marked:
        for x, y in points:
            title = f"<title>{html.escape(series.name)}: {_short(y)} at {_short(x)}</title>"
            parts.append(
                f'<circle class="{colour}" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3.5">{title}</circle>'
            )
    return "".join(parts)


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most ``MAX_POINTS``: the highest of each group, so that peaks stay."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / MAX_POINTS)
    highest: Callable[[Point], float] = lambda point: point[1]  # noqa: E731
    return [max(points[start : start + size], key=highest) for start in range(0, len(points), size)]


def _legend(names: Sequence[str]) -> str:
    items = [f'<span><i class="s{n % NUM_COLOURS}"></i>{html.escape(name)}</span>' for n, name in enumerate(names)]
    return f'<div class="legend">{"".join(items)}</div>'


def _svg(caption: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(caption, quote=True)}">'
    return head + "".join(parts) + "</svg>"


def _figure(caption: str, content: str, note: str) -> str:
    shown = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{content}{shown}</figure>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _short(value: float) -> str:
    """A number in few characters: ``1.5k``, ``0.02``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
