"""Compiling writes a whole folder or nothing, and what was compiled answers as its source does."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.checkpoint.open import open_checkpoint
from headrace.core.compiled_files import TOKENIZER_FILE, TOKENS_FILE, is_compiled
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from headrace.core.sampling import SamplingParams
from headrace.engine import compiled_folder, compiler
from headrace.engine.compiler import CompileJob, compile_model
from headrace.engine.factory import build_engine
from headrace.engine.stored_tokens import StoredTokens, load_tokens
from headrace.engine.token_table import TokenTable
from headrace.engine.tokenizer import Tokenizer, load_tokenizer, read_spec
from headrace.llm.offline import LLM
from headrace.native.compiled import open_compiled
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "the cat and the hat"}]

SOURCES: dict[str, Callable[[Path], Path]] = {"safetensors": write_tiny_model, "gguf": write_tiny_gguf}


@pytest.fixture(scope="module", params=SOURCES, name="source")
def tiny_source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SOURCES[request.param](tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module", name="folder_model")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("source"))


def job(source: Path, output: Path, **options: object) -> CompileJob:
    return CompileJob(**{"model": str(source), "output": output, "threads": 1, "tuning_budget_s": 0.1, **options})  # type: ignore[arg-type]


def answer(model: Path, **settings: object) -> list[int]:
    quiet = NullProgress()
    with LLM(str(model), progress=quiet, threads=1, max_num_seqs=4, kv_cache_bytes="4MiB", **settings) as llm:
        return llm.chat([MESSAGES], GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize("dtype", ["auto", "int8", "int4"])
def test_a_compiled_model_answers_as_its_source_does_without_it(dtype: str, source: Path, tmp_path: Path) -> None:
    before = answer(source, dtype=dtype)
    moved = tmp_path / "source"
    (shutil.copytree if source.is_dir() else shutil.copy)(
        source, moved if source.is_dir() else moved.with_suffix(".gguf")
    )
    moved = moved if source.is_dir() else moved.with_suffix(".gguf")
    manifest = compile_model(job(moved, tmp_path / "out", dtype=dtype), NullProgress())
    (shutil.rmtree if moved.is_dir() else Path.unlink)(moved)
    assert is_compiled(tmp_path / "out")
    assert answer(tmp_path / "out") == before
    tokenizer, original = load_tokenizer(tmp_path / "out"), load_tokenizer(source)
    assert tokenizer.chat_template == original.chat_template
    assert tokenizer.eos_token_ids == original.eos_token_ids
    assert tokenizer.encode("the cat <|im_end|>") == original.encode("the cat <|im_end|>")
    assert manifest == open_compiled(tmp_path / "out").manifest


def test_accuracy_is_measured_against_float32(folder_model: Path, tmp_path: Path) -> None:
    errors = {}
    for dtype in ("f32", "int8", "int4"):
        accuracy = compile_model(job(folder_model, tmp_path / dtype, dtype=dtype), NullProgress()).accuracy
        assert accuracy is not None
        assert accuracy.num_tokens == 512  # as much of the text as the model has positions for
        assert accuracy.num_greedy == 8 * 16
        assert accuracy.reference_perplexity > 1
        errors[dtype] = max(error.relative_error for error in accuracy.matrices)
        if dtype == "f32":
            assert accuracy.perplexity == accuracy.reference_perplexity
            assert accuracy.top1_agreement == 1.0
            assert accuracy.num_equal_greedy == accuracy.num_greedy
        else:
            assert abs(accuracy.perplexity_change) < 0.5
            assert accuracy.top1_agreement > 0.2
    assert 0.0 == errors["f32"] < errors["int8"] < errors["int4"] < 0.2


def test_the_plan_and_the_source_are_in_the_manifest(source: Path, tmp_path: Path) -> None:
    manifest = compile_model(job(source, tmp_path / "out", tuning_budget_s=0.0, checks_accuracy=False), NullProgress())
    assert manifest.accuracy is None
    assert manifest.tuning.seconds == 0.0
    weights = [source] if source.is_file() else [source / "model.safetensors"]
    assert [(file.name, file.num_bytes) for file in manifest.source.files] == [
        (path.name, path.stat().st_size) for path in weights
    ]
    names = {buffer.name for buffer in manifest.memory.buffers}
    assert {"hidden", "qkv", "gate_up"} <= names
    assert manifest.memory.arena_row_bytes >= max(
        buffer.offset + buffer.row_bytes for buffer in manifest.memory.buffers
    )
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["schema"] == manifest.schema


def test_an_output_that_exists_is_kept_unless_it_may_be_replaced(folder_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    quick = {"checks_accuracy": False, "tuning_budget_s": 0.0}
    output.mkdir()  # an empty folder is no obstacle
    compile_model(job(folder_model, output, **quick), NullProgress())
    first = (output / "manifest.json").read_bytes()
    with pytest.raises(ConfigError, match="--force"):
        compile_model(job(folder_model, output, dtype="int4", **quick), NullProgress())
    assert (output / "manifest.json").read_bytes() == first
    compile_model(job(folder_model, output, dtype="int4", replaces=True, **quick), NullProgress())
    assert open_compiled(output).manifest.dtype == "int4"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    for replaces in (False, True):
        with pytest.raises(ConfigError, match="other things"):
            compile_model(job(folder_model, other, replaces=replaces, **quick), NullProgress())
    with pytest.raises(ConfigError, match="not a folder"):
        compile_model(job(folder_model, other / "thesis.txt", **quick), NullProgress())
    assert (other / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "no space"), (errno.EACCES, "Permission denied"), (errno.EIO, "error")]
)
def test_a_failed_write_leaves_nothing_behind(
    number: int, message: str, folder_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, *arguments: object) -> None:
        (folder / "weights.bin").write_bytes(b"half")
        raise OSError(number, "Permission denied" if number == errno.EACCES else "some error")

    monkeypatch.setattr(compiled_folder, "write_weights", fail)
    with pytest.raises(ConfigError, match=message):
        compile_model(job(folder_model, tmp_path / "out", checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_found_out_before_writing(
    folder_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(total=10, used=3, free=7)
    monkeypatch.setattr(compiled_folder.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"it takes .* KiB, but 7 B are free"):
        compile_model(job(folder_model, tmp_path / "out", checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_for_the_reference_names_the_way_out(
    folder_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "available_memory_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match="--no-check"):
        compile_model(job(folder_model, tmp_path / "out", dtype="int8", tuning_budget_s=0.0), NullProgress())


def test_a_compiled_model_is_refused_where_a_source_is_needed(folder_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    compile_model(job(folder_model, output, dtype="int8", checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    with pytest.raises(ConfigError, match="compiled already"):
        compile_model(job(output, tmp_path / "again"), NullProgress())
    with pytest.raises(ConfigError, match="no stored tensors"):
        open_checkpoint(output)
    for settings, message in (
        ({"backend": "torch"}, "compiled for the native backend"),
        ({"dtype": "int4"}, "was compiled with --dtype int8"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_engine(EngineConfig(model=str(output), kv_cache_bytes=1 << 22, **settings), NullProgress())
    engine = build_engine(EngineConfig(model=str(output), kv_cache_bytes=1 << 22, dtype="int8"), NullProgress())
    assert engine.info.dtype == "int8"
    engine.close()


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", b"\x81\xa4json\x01", b"\xdd\xff\xff\xff\xff"])
def test_a_damaged_tokenizer_of_a_compiled_model_is_named(damage: bytes, folder_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    compile_model(job(folder_model, output, checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    (output / TOKENIZER_FILE).write_bytes(damage)
    with pytest.raises(ConfigError, match=TOKENIZER_FILE):
        load_tokenizer(output)
    (output / TOKENIZER_FILE).unlink()
    with pytest.raises(ConfigError, match=TOKENIZER_FILE):
        load_tokenizer(output)


def test_every_fact_of_a_tokenizer_is_kept(source: Path, tmp_path: Path) -> None:
    compile_model(job(source, tmp_path / "out", checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    assert read_spec(tmp_path / "out") == read_spec(source)


def test_the_tokens_of_a_compiled_model_are_those_of_its_tokenizer(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    compile_model(job(source, output, checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    tokens, tokenizer = load_tokens(output), load_tokenizer(source)
    assert isinstance(tokens, StoredTokens)
    ids = range(-1, tokenizer.vocab_size + 2)
    assert [tokens.shown_bytes(i) for i in ids] == [tokenizer.shown_bytes(i) for i in ids]
    assert tokens.special_token_ids == tokenizer.special_token_ids
    assert tokens.eos_token_ids == tokenizer.eos_token_ids
    assert tokens.encode_text("the cat <|im_end|>") == tokenizer.encode_text("the cat <|im_end|>")
    for skips in (True, False):
        ours, theirs = tokens.detokenizer(skips), tokenizer.detokenizer(skips)
        assert [ours.push(i) for i in range(tokenizer.vocab_size)] == [
            theirs.push(i) for i in range(tokenizer.vocab_size)
        ]


def test_an_engine_takes_another_tokenizer_than_the_compiled_one_where_it_is_told_to(
    folder_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    compile_model(job(folder_model, output, checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    assert isinstance(load_tokens(output, str(folder_model)), Tokenizer)


def test_a_compiled_model_without_a_table_of_tokens_is_read_with_its_tokenizer(
    folder_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    compile_model(job(folder_model, output, checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    (output / TOKENS_FILE).unlink()
    assert isinstance(load_tokens(output), Tokenizer)


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xc1", b"\x80", msgspec.msgpack.encode(TokenTable([b"a"], [1], [])), msgspec.msgpack.encode({"json": 1})],
)
def test_a_damaged_table_of_tokens_is_named(damage: bytes, folder_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    compile_model(job(folder_model, output, checks_accuracy=False, tuning_budget_s=0.0), NullProgress())
    (output / TOKENS_FILE).write_bytes(damage)
    with pytest.raises(ConfigError, match=TOKENS_FILE):
        load_tokens(output)
