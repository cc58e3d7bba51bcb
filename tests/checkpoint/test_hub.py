"""Fetching from the Hub through a stand-in of its client library."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from headrace.checkpoint.hub import choose_files, fetch_from_hub, find_in_hub_cache
from headrace.core.errors import ConfigError


class FakeHub(ModuleType):
    """The two calls we make, on a repository in memory; ``is_online`` and ``is_cached`` as the test likes."""

    def __init__(self, files: Sequence[str], folder: Path) -> None:
        super().__init__("huggingface_hub")
        self.__spec__ = importlib.machinery.ModuleSpec("huggingface_hub", None)
        self.files = files
        self.folder = folder
        self.is_online = True
        self.is_cached = False
        self.allow_patterns: list[str] = []

    def HfApi(self) -> FakeHub:
        return self

    def list_repo_files(self, repository: str) -> list[str]:
        if not self.is_online:
            raise RuntimeError("no route to host")
        return list(self.files)

    def snapshot_download(
        self, repository: str, *, allow_patterns: Sequence[str] = (), local_files_only: bool = False
    ) -> str:
        if local_files_only and not self.is_cached:
            raise FileNotFoundError("not cached")
        self.allow_patterns = list(allow_patterns)
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(["config.json", "model.safetensors", "pytorch_model.bin", "modeling_x.py"], tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_only_weights_and_data_files_are_fetched(hub: FakeHub) -> None:
    assert fetch_from_hub("org/name") == hub.folder
    assert hub.allow_patterns == ["model.safetensors", "config.json"]


def test_without_a_network_what_was_fetched_before_is_used(hub: FakeHub) -> None:
    hub.is_online = False
    with pytest.raises(ConfigError, match="cannot be fetched: no route to host"):
        fetch_from_hub("org/name")
    hub.is_cached = True
    assert fetch_from_hub("org/name") == hub.folder


def test_looking_in_the_cache_fetches_nothing(hub: FakeHub) -> None:
    with pytest.raises(ConfigError, match="headrace models pull hf:org/name"):
        find_in_hub_cache("org/name")
    hub.is_cached = True
    assert find_in_hub_cache("org/name") == hub.folder


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[hub\]'"):
        fetch_from_hub("org/name")


@pytest.mark.parametrize("repository", ["", "name", "a/b/c", "../x", "a/..", "a/b@main", "-a/b", "a/b\n", "a--b/c"])
def test_a_repository_that_is_no_org_and_name_is_refused(repository: str, hub: FakeHub) -> None:
    with pytest.raises(ConfigError, match="hf:ORG/NAME"):
        fetch_from_hub(repository)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "consolidated.safetensors", "a.gguf"], ["model.safetensors"]),
        (
            ["model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors", "x/model-3.safetensors"],
            ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"],
        ),
        (
            ["m.gguf", "README.md", "tokenizer.model", "chat_template.jinja"],
            ["m.gguf", "tokenizer.model", "chat_template.jinja"],
        ),
        (["model.safetensors", "*.json", "../x.json", "[a].json", "code.py"], ["model.safetensors"]),
    ],
)
def test_one_set_of_weights_and_what_belongs_to_it_is_chosen(names: list[str], chosen: list[str]) -> None:
    assert choose_files("org/name", names) == chosen


@pytest.mark.parametrize("names", [["pytorch_model.bin", "config.json"], ["a.gguf", "b.gguf"], []])
def test_a_repository_without_one_set_of_weights_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="GGUF files at its top level and no safetensors"):
        choose_files("org/name", names)
