"""The second start maps what the first one packed, and nothing outdated or broken is ever used."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headrace.core.compiled_files import MANIFEST_FILE, TOKENS_FILE, is_compiled
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from headrace.core.sampling import SamplingParams
from headrace.engine import compiled_cache, factory
from headrace.engine.compiled_cache import CompiledCache
from headrace.engine.compiler import CompileJob, compile_model
from headrace.llm.offline import LLM
from tests.tiny_gguf import write_tiny_gguf

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def folders(root: Path) -> list[Path]:
    return sorted(root.iterdir()) if root.exists() else []


def keep(cache: CompiledCache, model: Path, dtype: str = "auto") -> None:
    def write(folder: Path) -> None:
        compile_model(
            CompileJob(str(model), folder, 1, dtype, tuning_budget_s=0, checks_accuracy=False), NullProgress()
        )

    thread = cache.keep(model, dtype, write)
    assert thread is not None
    thread.join(60)


@pytest.fixture(name="model")
def tiny_model(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "model")


@pytest.fixture(name="root")
def cache_root(tmp_path: Path) -> Path:
    return tmp_path / "compiled"


def test_what_was_kept_is_opened_instead_of_the_model(model: Path, root: Path) -> None:
    cache = CompiledCache(root)
    assert cache.opened(model, "auto", lambda path: path) == model
    keep(cache, model)
    found = cache.opened(model, "auto", lambda path: path)
    assert found.parent == root
    assert is_compiled(found)
    assert cache.opened(model, "int8", lambda path: path) == model


def test_a_changed_file_is_packed_again_and_the_old_folder_goes(model: Path, root: Path) -> None:
    cache = CompiledCache(root)
    keep(cache, model)
    keep(cache, model, "int8")
    before = folders(root)
    os.utime(model, ns=(1, 1))
    assert cache.opened(model, "auto", lambda path: path) == model
    keep(cache, model)
    after = folders(root)
    assert len(before) == len(after) == 2
    assert len(set(before) & set(after)) == 1  # the one of the other format stays


def test_a_damaged_folder_is_said_removed_and_done_without(
    model: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CompiledCache(root)
    keep(cache, model)
    (folder,) = folders(root)
    (folder / MANIFEST_FILE).write_text("{}")
    assert cache.opened(model, "auto", factory.open_model).path == model
    assert "is of no use" in caplog.text
    assert folders(root) == []


def test_all_folders_of_a_removed_model_go_with_it(model: Path, root: Path) -> None:
    cache = CompiledCache(root)
    keep(cache, model)
    keep(cache, model, "int8")
    keep(cache, write_tiny_gguf(model.parent / "other"))
    model.unlink()
    cache.forget(model)
    assert len(folders(root)) == 1


def test_what_cannot_be_kept_is_only_logged(model: Path, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    def write(folder: Path) -> None:
        raise ConfigError("no space", "output")

    with caplog.at_level("INFO"):
        thread = CompiledCache(root).keep(model, "auto", write)
        assert thread is not None
        thread.join(10)
    assert "no space" in caplog.text


def test_half_made_folders_of_dead_processes_are_removed(model: Path, root: Path) -> None:
    mine, dead = root / f".x.{os.getpid()}", root / ".x.4194304"
    mine.mkdir(parents=True)
    dead.mkdir()
    keep(CompiledCache(root), model)
    assert mine.exists()
    assert not dead.exists()


def test_compiled_folders_and_missing_models_have_no_folder_of_their_own(model: Path, root: Path) -> None:
    cache = CompiledCache(root)
    keep(cache, model)
    (folder,) = folders(root)
    assert cache.keep(folder, "auto", pytest.fail) is None
    assert cache.keep(model / "missing", "auto", pytest.fail) is None
    assert CompiledCache(None).keep(model, "auto", pytest.fail) is None


def answer(model: Path, **settings: object) -> list[int]:
    """Start an engine, wait until it has kept what it packed, and ask it."""
    with LLM(str(model), progress=NullProgress(), threads=1, kv_cache_bytes="1MiB", **settings) as llm:
        for thread in threading.enumerate():
            if thread.name == compiled_cache.THREAD_NAME:
                thread.join(60)
        return llm.generate(["the cat"], GREEDY)[0].outputs[0].token_ids


def test_the_engine_answers_the_same_from_its_kept_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(factory, "LEAST_BYTES", 0)
    paths: list[Path] = []
    open_model = factory.open_model
    monkeypatch.setattr(factory, "open_model", lambda path: paths.append(path) or open_model(path))

    assert answer(model) == answer(model) == answer(model, compile_cache=False)
    assert [path.parent == tmp_path / "compiled" for path in paths] == [False, True, False]


def test_another_tokenizers_tokens_are_not_kept_as_the_models(
    model: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(factory, "LEAST_BYTES", 0)
    answer(model, tokenizer=str(write_tiny_gguf(tmp_path / "other")))
    (folder,) = folders(root)
    assert is_compiled(folder)
    assert not (folder / TOKENS_FILE).exists()


def test_the_torch_backend_keeps_nothing() -> None:
    cache = compiled_cache.compiled_cache(EngineConfig(model="m", backend="torch"))
    assert cache.opened(Path("m"), "auto", lambda path: path) == Path("m")
