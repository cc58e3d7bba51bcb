"""SEC-18, SEC-19 and SEC-29: model folders that bring pickles, code, and files made to hurt."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.checkpoint.open import open_checkpoint
from headrace.core.errors import ConfigError
from tests.hostile.files import MEMORY_LIMIT_BYTES, TIME_LIMIT_S, run
from tests.tiny_model import write_tiny_model

NUM_MUTANTS = 900


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "weights.pkl"])
def test_sec_18_a_pickle_is_refused_by_name_and_never_opened(name: str, tmp_path: Path) -> None:
    folder, mark = write_tiny_model(tmp_path / "m"), tmp_path / "mark"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        open_checkpoint(folder)
    with pytest.raises(ConfigError):
        open_checkpoint(folder / name)
    assert not mark.exists()
    pickle.loads((folder / name).read_bytes())
    assert mark.exists(), "the bomb works, had anybody lit it"


def test_sec_18_a_pickle_that_calls_itself_safetensors_is_refused(tmp_path: Path) -> None:
    folder, mark = write_tiny_model(tmp_path / "m"), tmp_path / "mark"
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ConfigError):
        open_checkpoint(folder)
    assert not mark.exists()


LOAD_AND_ASK = """
import sys
from headrace import LLM
before = set(sys.modules)
with LLM(sys.argv[1], compile_cache=False, kv_cache_bytes=1 << 20, threads=1) as llm:
    print(len(llm.chat([{"role": "user", "content": "x"}])[0].outputs[0].token_ids))
foreign = [name for name, module in sys.modules.items() if sys.argv[1] in str(getattr(module, "__file__", ""))]
assert not foreign, foreign
"""


def test_sec_19_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    """The names by which other loaders find code: ``auto_map``, custom classes, and files that Python itself runs."""
    folder, mark = write_tiny_model(tmp_path / "m"), tmp_path / "mark"
    code = f"import os\nos.mkdir({str(mark)!r})\n"
    for name in (
        "modeling_evil",
        "configuration_evil",
        "tokenization_evil",
        "__init__",
        "sitecustomize",
        "usercustomize",
    ):
        (folder / f"{name}.py").write_text(code)
    for name in ("numpy", "msgspec", "tokenizers", "torch"):
        (folder / f"{name}.py").write_text(code)
    auto_map = {
        "AutoConfig": "configuration_evil.C",
        "AutoModelForCausalLM": "modeling_evil.M",
        "AutoTokenizer": ["t.T", None],
    }
    for name, more in (
        ("config.json", {"auto_map": auto_map, "custom_code": True, "trust_remote_code": True}),
        ("tokenizer_config.json", {"auto_map": auto_map, "tokenizer_class": "tokenization_evil.T"}),
    ):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_ASK, str(folder)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert not mark.exists()


def test_sec_19_there_is_no_word_that_trusts_remote_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "serve", str(tmp_path), "--trust-remote-code"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "trust-remote-code" in done.stderr


def test_sec_29_mutated_model_files_are_read_or_refused_without_a_crash() -> None:
    report = run(0, NUM_MUTANTS)
    assert report.failures == []
    assert report.num_mutants == NUM_MUTANTS
    assert NUM_MUTANTS // 4 < report.num_refused < NUM_MUTANTS
    assert report.longest_s < 10 * TIME_LIMIT_S, "a build that packs weights, on a busy machine"
    assert report.peak_bytes < MEMORY_LIMIT_BYTES
