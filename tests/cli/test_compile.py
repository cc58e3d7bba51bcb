"""``headrace compile`` writes a folder, says what is in it, and the folder serves over HTTP."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headrace.cli.compile_report import render_html, render_text
from headrace.cli.main import EXIT_USAGE, main
from headrace.native.compiled import open_compiled
from tests.server.harness import MODEL, running_server
from tests.server.real_engine import tiny_backend
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module", name="source")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module", name="folder")
def compiled_folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "tiny"
    command = ["compile", str(source), "-o", str(folder), "--dtype", "int8", "--threads", "1", "--report"]
    assert main([*command, "--json", str(folder.parent / "result.json")]) == 0
    return folder


def test_the_verb_prints_a_table_of_layers_choices_and_accuracy(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(source), "-o", str(tmp_path / "out"), "--dtype", "int4", "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"^gate_up +2 +int4 +256 +64 +\S+ KiB +\d+\.\d\d%$", shown.out, re.MULTILINE)
    assert re.search(
        r"^int4 256x64 +33\+ +tile \dx\d\d, piece \d+ KiB, block \d+ +\S+ us for 128", shown.out, re.MULTILINE
    )
    assert re.search(r"^perplexity +\d+\.\d{4} +\d+\.\d{4}$", shown.out, re.MULTILINE)
    assert shown.out.endswith(f"wrote {tmp_path / 'out'}; run it with: headrace serve {tmp_path / 'out'}\n")
    assert "tuning" in shown.err
    assert "checking accuracy" in shown.err


def test_what_is_left_out_is_not_in_the_table(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(source), "-o", str(tmp_path / "out"), "--no-tune", "--no-check"]) == 0
    shown = capsys.readouterr().out
    assert "Not measured" in shown
    assert "perplexity" not in shown
    assert not (tmp_path / "out" / "report.html").exists()


def test_the_json_result_is_the_manifest(folder: Path) -> None:
    result = json.loads((folder.parent / "result.json").read_text())
    assert result == json.loads((folder / "manifest.json").read_text())


class Page(HTMLParser):
    """Collects what a page asks for from elsewhere, and the text of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.cells.append(data)


def test_the_page_asks_for_nothing_from_elsewhere_and_has_both_colour_schemes(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    page.close()
    assert not page.references
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert "gate_up" in page.cells
    assert text.count("<table>") == text.count("</table>") == 4


def test_names_from_outside_are_shown_as_text(folder: Path) -> None:
    manifest = open_compiled(folder).manifest
    evil = "<script>alert(1)</script>"
    source = type(manifest.source)(evil, manifest.source.format, manifest.source.files)
    changed = type(manifest)(
        **{name: getattr(manifest, name) for name in manifest.__struct_fields__} | {"source": source}
    )
    assert "<script>" not in render_html(changed)
    assert evil in render_text(changed)


def test_the_folder_serves_over_http_as_its_source_does(source: Path, folder: Path) -> None:
    body = {"model": MODEL, "prompt": "the cat and", "temperature": 0, "max_tokens": 10, "ignore_eos": True}
    texts = []
    for model, dtype in ((source, "int8"), (folder, "auto")):
        with running_server(tiny_backend(model, dtype=dtype, backend="native")) as server:
            reply = server.http.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            texts.append(reply.json()["choices"][0]["text"])
    assert texts[0] == texts[1] != ""


def test_wrong_usage_is_one_line(source: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([str(source)], "-o DIR"),
        ([str(source), "-o", str(folder)], "--force"),
        ([str(source), "-o", str(folder), "--dtype", "int3"], "int3"),
        ([str(source), "-o", "x", "--threads", "0"], "--threads is 0"),
        (["no-such-model", "-o", "x"], "there is no model"),
        ([str(folder), "-o", str(folder.parent / "again")], "compiled already"),
    ):
        assert main(["compile", *words]) == EXIT_USAGE
        lines = capsys.readouterr().err.strip().splitlines()
        assert lines[-1].startswith("error: ")
        assert message in lines[-1]
