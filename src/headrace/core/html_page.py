"""Reports as one HTML file that needs nothing but itself: no script, no outside request, light or dark as the reader's
system is, readable from a telephone's width on. Owns the frame, tables and colours; not what is shown."""

from __future__ import annotations

import html
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fbfbfd; --line: #d9dce4; --soft: #596273;
  --c0: #1f5fbf; --c1: #b4540a; --c2: #19794a; --c3: #8a2f8f; --c4: #a11d33; --c5: #4c5a6b; --card: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7e9ee; --paper: #14171d; --line: #333946; --soft: #98a2b3;
    --c0: #7fb2ff; --c1: #f0a860; --c2: #6fd19f; --c3: #d99ae0; --c4: #ff8f9f; --c5: #b3bdca; --card: #1b1f27; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 78rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { color: var(--soft); margin: .25rem 0; } p.warning { color: var(--c4); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } .facts td { white-space: normal; } .facts td:first-child { color: var(--soft); }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); }
figcaption { font-weight: 600; font-size: .95rem; } figure p { font-size: .85rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.s0 { stroke: var(--c0); fill: var(--c0); } .s1 { stroke: var(--c1); fill: var(--c1); }
.s2 { stroke: var(--c2); fill: var(--c2); } .s3 { stroke: var(--c3); fill: var(--c3); }
.s4 { stroke: var(--c4); fill: var(--c4); } .s5 { stroke: var(--c5); fill: var(--c5); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem .9rem; font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: .9rem; height: .2rem; margin-right: .35rem; vertical-align: middle; }
.legend .s0 { background: var(--c0); } .legend .s1 { background: var(--c1); } .legend .s2 { background: var(--c2); }
.legend .s3 { background: var(--c3); } .legend .s4 { background: var(--c4); } .legend .s5 { background: var(--c5); }
"""


def page(title: str, body: Sequence[str]) -> str:
    """The whole file; ``body`` is HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def title_heading(text: str) -> str:
    return f"<h1>{html.escape(text)}</h1>"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(rows: Rows) -> str:
    """The first row is the head."""
    head, *body = rows
    return _table([_row("th", head), *(_row("td", row) for row in body)])


def facts(rows: Rows) -> str:
    """A table without a head: names and values."""
    return _table([_row("td", row) for row in rows], "wide facts")


def _table(lines: Sequence[str], kind: str = "wide") -> str:
    return f'<div class="{kind}"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
