from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main


def test_explain_prints_and_writes_the_automaton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("a.dot", "a.svg", "a.json")}
    flags = ["--dot", str(files["a.dot"]), "--svg", str(files["a.svg"]), "--json", str(files["a.json"])]
    assert main(["grammar", "explain", "--json-schema", '{"ok": boolean}', *flags]) == 0
    shown = capsys.readouterr().out
    assert "state 0  forced" in shown
    assert '{"ok":' in shown
    assert files["a.dot"].read_text().startswith("digraph")
    assert files["a.svg"].read_text().startswith("<svg")
    assert json.loads(files["a.json"].read_text())["is_cut"] is False


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ([], 2, "exactly one of --json-schema"),
        (["--regex", "a", "--lark", "b"], 2, "2 are given"),
        (["--regex", "["], 1, "unclosed character class"),
    ],
)
def test_wrong_use_is_explained(flags: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grammar", "explain", *flags]) == code
    assert words in capsys.readouterr().err
