"""What is printed when the server is ready."""

from __future__ import annotations

import shlex

import msgspec

from headrace.core.config import ServeConfig
from headrace.server.model_names import model_names
from headrace.server.start_block import start_block
from tests.server.fakes import ScriptedClient

INFO = msgspec.structs.replace(
    ScriptedClient().info,
    num_parameters=134_515_008,
    dtype="int4+int8",
    weight_bytes=96_576_768,
    backend="native",
    kernels="avx2",
    kv_cache_dtype="float16",
    stage_times_s={"resolve": 0.04, "weights": 2.5},
)


def test_the_block_says_what_runs_and_how_to_use_it() -> None:
    lines = start_block(INFO, ServeConfig(), "tiny", "http://127.0.0.1:8000", has_chat=True).split("\n")
    assert lines[0].startswith("headrace ")
    assert [line.strip() for line in lines[1:-2]] == [
        "model         tiny (smollm2)",
        "architecture  alphabet",
        "dtype         int4+int8, 92.1 MiB",
        "backend       native (avx2 kernels)",
        "parameters    134.5 M",
        "KV cache      64 blocks of 16 = 1024 tokens, 1.0 MiB of float16",
        "concurrency   2.0 requests at the full length of 512 tokens",
        "limits        8 sequences, 512 tokens per step, 256 queued",
        "stages        resolve 0.0 s, weights 2.5 s",
        "keys          none needed",
        "URL           http://127.0.0.1:8000/v1",
    ]
    starts = {len(line) - len(line[2:].split("  ", 1)[1].lstrip()) for line in lines[1:-2]}
    assert len(starts) == 1, "values are aligned"


def test_all_names_are_shown_and_the_reference_where_it_differs() -> None:
    def model_row(**settings: object) -> str:
        config = ServeConfig(**settings)  # type: ignore[arg-type]
        block = start_block(INFO, config, model_names(config)[0], "http://h:1", has_chat=True)
        return block.split("\n")[1].strip()

    assert model_row() == "model         smollm2"
    assert model_row(served_model_name=("a", "b")) == "model         a, b (smollm2)"
    assert model_row(model="/models/tiny.gguf") == "model         tiny (/models/tiny.gguf)"


def test_the_command_can_be_pasted() -> None:
    block = start_block(INFO, ServeConfig(), "it's", "http://h:1", has_chat=True)
    words = shlex.split(block.split("\n")[-1])
    assert words[:2] == ["curl", "http://h:1/v1/chat/completions"]
    assert msgspec.json.decode(words[-1])["model"] == "it's"


def test_a_base_model_is_asked_to_complete() -> None:
    block = start_block(INFO, ServeConfig(), "base", "http://h:1", has_chat=False)
    assert "http://h:1/v1/completions" in block
    assert '"prompt"' in block


def test_keys_are_counted_and_never_shown() -> None:
    block = start_block(INFO, ServeConfig(api_key=("s3cret", "other")), "m", "http://h:1", has_chat=True)
    assert "2 API keys" in block
    assert '"authorization: Bearer $HEADRACE_API_KEY"' in block
    assert "s3cret" not in block
