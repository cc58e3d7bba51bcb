from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from headrace.cli.main import main


def check(path: Path, source: object, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    path.write_text(source if isinstance(source, str) else json.dumps(source))
    code = main(["schema", "check", str(path), *flags])
    return code, capsys.readouterr().out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "schema.json"


def test_an_enforced_schema_is_0(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}}
    code, shown = check(path, schema, capsys)
    assert code == 0
    assert "rewritten   #/properties/d/format  as a pattern" in shown
    assert "#/type" not in shown
    assert "is enforced as it stands" in shown
    assert "enforced    #/type" in check(path, schema, capsys, "--all")[1]


def test_a_refused_keyword_is_1_and_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = check(path, {"items": {"type": "array", "uniqueItems": True}}, capsys)
    assert code == 1
    assert "refused     #/items/uniqueItems  items are not from a list" in shown
    assert "best_effort" in shown


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{", "line 1, column 2"),
        ({"$ref": "#/nowhere"}, "#/nowhere is referred to but is not in the schema"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "is refused"),
    ],
)
def test_what_no_grammar_can_be_made_of_is_1_and_explained(
    path: Path, source: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = check(path, source, capsys)
    assert code == 1
    assert words in shown


def test_the_report_is_json_too(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = check(path, {"type": "null"}, capsys, "--json", "-")
    assert code == 0
    assert json.loads(shown)["findings"] == [{"place": "/type", "outcome": "enforced", "note": ""}]


def test_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"type": "null"}'))
    assert main(["schema", "check", "-"]) == 0
    assert "1 enforced" in capsys.readouterr().out


def test_a_missing_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "check", "nowhere.json"]) == 2
    assert "cannot read the schema nowhere.json: No such file" in capsys.readouterr().err
