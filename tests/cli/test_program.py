from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main

SOURCE = """
from headrace import program as sgl

@sgl.function
def greet(s, name):
    s += "Hello " + name + sgl.gen("answer", max_tokens=4)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "greeting.py"
    path.write_text(SOURCE)
    return path


def test_show_prints_draws_and_writes_a_program(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, data = tmp_path / "greet.svg", tmp_path / "greet.json"
    assert main(["program", "show", f"{file}:greet", "--svg", str(svg), "--json", str(data)]) == 0
    assert "greet(name)" in capsys.readouterr().out
    assert svg.read_text().startswith("<svg")
    assert json.loads(data.read_text())["arguments"] == ["name"]


def test_arguments_may_be_given(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["program", "show", f"{file}:greet", "--argument", "name=Ann"]) == 0
    assert '"Hello Ann"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("greeting.py", "write FILE:NAME"),
        ("nowhere.py:greet", "there is no file nowhere.py"),
        ("{file}:greet_all", "has no program 'greet_all'; it has greet"),
    ],
)
def test_what_is_no_program_is_explained(
    file: Path, capsys: pytest.CaptureFixture[str], reference: str, message: str
) -> None:
    assert main(["program", "show", reference.format(file=file)]) == 2
    assert message in capsys.readouterr().err
