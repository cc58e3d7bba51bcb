"""The pages: complete in themselves, and whole in a real browser, light and dark, narrow and wide."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from headrace.bench.charts import Axis, Series, bar_chart, line_chart, round_ticks
from headrace.bench.report import ServingReport
from headrace.bench.report_html import render_page
from tests.bench.records import report_of

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What a page refers to, whether its tags close, and the text that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "line", "rect", "circle", "polyline", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open and self.open[-1] == tag:
            self.open.pop()


@pytest.mark.parametrize("count", [1, 3])
def test_a_page_needs_nothing_but_itself(count: int) -> None:
    text = render_page([report_of(f"server {number}", 0.1 + 0.05 * number) for number in range(count)])
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.references == []
    assert "script" not in page.tags
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert "tiny <b>" not in text
    assert "tiny &lt;b&gt;" in text
    assert text.count("<svg") == (5 if count == 1 else 5 + count)
    assert ("Side by side" in text) == (count > 1)


def test_a_report_survives_its_file() -> None:
    report = report_of("a", 0.1)
    assert msgspec.json.decode(msgspec.json.encode(report), type=ServingReport) == report


def test_a_chart_without_values_says_so() -> None:
    assert "Nothing was measured" in line_chart("x", [Series("a", [])], Axis("s"), Axis("n"))
    assert "Nothing was measured" in bar_chart("x", [("a", 0.0)], Axis("n"), "ms")


def test_ticks_are_round() -> None:
    assert round_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert round_ticks(0.13, 0.31) == pytest.approx([0.15, 0.2, 0.25, 0.3])


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e-3, 5e4], [3.0, 3.0, 3.0]])
def test_every_point_of_a_chart_lies_within_it(values: list[float]) -> None:
    points = [(float(x + 1), value) for x, value in enumerate(values)]
    chart = line_chart("x", [Series("a", points, is_marked=True)], Axis("s"), Axis("n"))
    for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', chart):
        assert 0 <= float(x) <= 400
        assert 0 <= float(y) <= 230


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here to look at the page")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_the_page_whole(width: int, scheme: str, tmp_path: Path) -> None:
    """Nothing is wider than the window, nothing is asked of the network, and the colours are those of the scheme."""
    probe = (
        "<script>addEventListener('load', () => { document.title = JSON.stringify({"
        "width: document.documentElement.scrollWidth, window: innerWidth, "
        "resources: performance.getEntriesByType('resource').length, "
        "charts: document.querySelectorAll('svg').length, "
        "flat: [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height < 100).length, "
        "paper: getComputedStyle(document.body).backgroundColor}) })</script>"
    )
    page = render_page([report_of("one", 0.1), report_of("another", 0.2)])
    file = tmp_path / "page.html"
    # a window of Chromium is at least 500 wide, whatever one asks for: a frame is not
    frame = f'<iframe id="f" style="width:{width}px;height:900px;border:0" src="page.html"></iframe>'
    file.write_text(page.replace("</body>", f"{probe}</body>"))
    found = json.loads(_title_in_frame(frame, scheme, tmp_path))
    assert found["window"] == width
    assert found["width"] <= width
    assert found["resources"] == 0
    assert (found["charts"], found["flat"]) == (7, 0)
    brightness = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) / 3
    assert (brightness > 128) == (scheme == "light")


def _title_in_frame(frame: str, scheme: str, folder: Path) -> str:
    copy = "<script>onload = () => { document.title = document.getElementById('f').contentDocument.title }</script>"
    outer = folder / "outer.html"
    outer.write_text(f"<!doctype html><meta charset=utf-8>{frame}{copy}")
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--allow-file-access-from-files"]
    flags += [
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
    ]
    flags += ["--virtual-time-budget=5000", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([BROWSER, *flags, outer.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title is not None, done.stdout[:2000]
    return title[1].replace("&quot;", '"')
