"""Which reader a path gets, and what is never opened."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.checkpoint.locate import locate_weights
from headrace.checkpoint.open import open_checkpoint
from headrace.core.errors import ConfigError
from tests.checkpoint.builders import small_gguf, small_safetensors, write_folder

CONFIG = {"model_type": "llama"}


def test_a_gguf_file_is_opened_as_such(tmp_path: Path) -> None:
    assert open_checkpoint(small_gguf().write(tmp_path / "Model.GGUF")).format == "gguf"


def test_a_folder_of_safetensors_is_opened_as_such(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": CONFIG, "model.safetensors": small_safetensors()})
    assert open_checkpoint(folder).format == "safetensors"
    assert open_checkpoint(folder / "model.safetensors").path == folder


def test_a_folder_with_one_gguf_stands_for_it(tmp_path: Path) -> None:
    path = small_gguf().write(tmp_path / "m.gguf")
    assert locate_weights(tmp_path) == path
    assert open_checkpoint(tmp_path).path == path


def test_a_folder_with_several_gguf_files_names_them(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        small_gguf().write(tmp_path / name)
    with pytest.raises(ConfigError, match=r"2 GGUF files; name one: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "x.ckpt", "weights.pkl"])
def test_a_folder_with_only_pickles_is_refused_by_name_with_a_remedy(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": CONFIG, name: b"cos\nsystem\n(S'touch pwned'\ntR."})
    with pytest.raises(ConfigError, match=rf"only {name}.*never opened.*safetensors"):
        open_checkpoint(folder)
    with pytest.raises(ConfigError, match="never opened"):
        open_checkpoint(folder / name)


def test_other_weights_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": CONFIG, "tf_model.h5": b"x"})
    with pytest.raises(ConfigError, match=r"only tf_model\.h5"):
        open_checkpoint(folder)


def test_an_empty_folder_and_another_file_say_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \.safetensors or \.gguf weights; give the folder"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"neither a folder nor a \.gguf or \.safetensors file"):
        open_checkpoint(tmp_path / "notes.txt")


def test_code_in_a_folder_is_never_imported(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').close()".encode()
    config = {"model_type": "x", "auto_map": {"AutoModel": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Config"}}
    folder = write_folder(
        tmp_path / "model",
        {
            "config.json": config,
            "modeling_evil.py": code,
            "__init__.py": code,
            "sitecustomize.py": code,
            "model.safetensors": small_safetensors(),
        },
    )
    modules = set(sys.modules)
    assert open_checkpoint(folder).metadata["auto_map"] == config["auto_map"]  # data, nothing more
    assert not mark.exists()
    assert not any("evil" in name for name in set(sys.modules) - modules)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="not a regular file"):
        open_checkpoint(tmp_path / "m.gguf")
