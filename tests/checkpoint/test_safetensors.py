"""safetensors files and folders: right ones are read, every kind of lie is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from headrace.checkpoint.safetensors import MAX_HEADER_BYTES, open_safetensors, read_tensors
from headrace.checkpoint.tensor_view import TensorType
from headrace.core.errors import ConfigError
from tests.checkpoint.builders import safetensors_bytes, small_safetensors, tensor_entry, write_folder

CONFIG = {"model_type": "llama", "hidden_size": 8}


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return path


def test_a_folder_gives_its_tensors_and_both_configs(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        {
            "config.json": CONFIG,
            "generation_config.json": {"eos_token_id": [1, 2]},
            "model.safetensors": small_safetensors(),
        },
    )
    checkpoint = open_safetensors(folder)
    assert (checkpoint.format, checkpoint.path, checkpoint.folder) == ("safetensors", folder, folder)
    assert checkpoint.metadata == CONFIG
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    np.testing.assert_array_equal(checkpoint.tensors["a"].to_float32(), np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(checkpoint.tensors["b"].to_float32(), np.ones(4, np.float32))


def test_a_file_written_by_the_reference_library_is_read_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        'weird " \\ name é': rng.standard_normal((3, 5), np.float32),
        "half": rng.standard_normal((2, 2, 2)).astype(np.float16),
        "scalar": np.array(4.0, np.float32),
        "ids": np.arange(3, dtype=np.int64),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt", "note": 'a "quoted" {brace}'})
    views = read_tensors(path)
    assert set(views) == set(tensors)
    for name in ('weird " \\ name é', "half", "scalar"):
        np.testing.assert_array_equal(views[name].to_float32(), tensors[name].astype(np.float32))
    assert views["ids"].dtype is TensorType.I64
    assert views["ids"].data.tobytes() == tensors["ids"].tobytes()


def test_whole_numbers_are_listed_but_not_converted(tmp_path: Path) -> None:
    path = written(tmp_path, safetensors_bytes({"ids": tensor_entry("I64", [2], 0, 16)}, bytes(16)))
    with pytest.raises(ConfigError, match="ids is stored as I64"):
        read_tensors(path)["ids"].to_float32()


def test_a_single_file_takes_the_config_beside_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": CONFIG, "other.safetensors": small_safetensors()})
    assert open_safetensors(folder / "other.safetensors").metadata == CONFIG
    assert set(open_safetensors(folder).tensors) == {"a", "b"}  # the only one there is


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    index = {
        "metadata": {"total_size": 64},
        "weight_map": {
            "x.a": "model-00001-of-00002.safetensors",
            "x.b": "model-00001-of-00002.safetensors",
            "y.a": "model-00002-of-00002.safetensors",
        },
    }
    folder = write_folder(
        tmp_path,
        {
            "config.json": CONFIG,
            "model.safetensors.index.json": index,
            "model-00001-of-00002.safetensors": small_safetensors("x."),
            "model-00002-of-00002.safetensors": small_safetensors("y."),
        },
    )
    # y.b is in a shard but not in the index: it is there, so it is shown
    assert set(open_safetensors(folder).tensors) == {"x.a", "x.b", "y.a", "y.b"}


def test_shards_may_be_links_into_a_blob_store(tmp_path: Path) -> None:
    blob = written(tmp_path, small_safetensors())
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}
    folder = write_folder(tmp_path / "snapshot", {"config.json": CONFIG, "model.safetensors.index.json": index})
    (folder / "model-1.safetensors").symlink_to(blob)
    assert set(open_safetensors(folder).tensors) == {"a", "b"}


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        ".hidden.safetensors",
        "a\0.safetensors",
        "a\x1b.safetensors",
        "pytorch_model.bin",
        "a" * 300 + ".safetensors",
        "",
    ],
)
def test_a_shard_name_that_leads_elsewhere_is_refused(shard: str, tmp_path: Path) -> None:
    written(tmp_path, small_safetensors())
    files = {"config.json": CONFIG, "model.safetensors.index.json": {"weight_map": {"a": shard}}}
    folder = write_folder(tmp_path / "model", files)
    with pytest.raises(ConfigError, match=r"not a plain \.safetensors file name") as caught:
        open_safetensors(folder)
    assert caught.value.field == "weight_map"


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "b": "two.safetensors"}, "in both one.safetensors and two.safetensors"),
        ({"a": "one.safetensors", "c": "one.safetensors"}, "says 'c' is in one.safetensors, but it is not"),
        ({"a": "three.safetensors"}, "three.safetensors, which is missing"),
        ({}, "number of shards in weight_map is 0"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    weight_map: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = write_folder(
        tmp_path,
        {
            "config.json": CONFIG,
            "model.safetensors.index.json": {"weight_map": weight_map},
            "one.safetensors": small_safetensors(),
            "two.safetensors": small_safetensors(),
        },
    )
    with pytest.raises(ConfigError, match=message):
        open_safetensors(folder)


@pytest.mark.parametrize(
    "index", [b"{", b"[]", b"{}", b'{"weight_map": {"a": 1}}', b'{"weight_map": []}', b"[" * 99999]
)
def test_an_index_that_is_no_index_is_refused(index: bytes, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": CONFIG, "model.safetensors.index.json": index})
    with pytest.raises(ConfigError) as caught:
        open_safetensors(folder)
    assert caught.value.field == "model.safetensors.index.json"


@pytest.mark.parametrize(
    "config", [b"", b"{", b"[1]", b"\xff{}", b'{"a":' * 5000, b"[" * 100_000, b" " * (2 << 20) + b"{}"]
)
def test_a_config_that_is_no_object_is_refused(config: bytes, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"config.json": config, "model.safetensors": small_safetensors()})
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_safetensors(folder)


def test_a_folder_without_config_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json.*copy it") as caught:
        open_safetensors(write_folder(tmp_path, {"model.safetensors": small_safetensors()}))
    assert caught.value.field == "config.json"


def test_several_files_without_index_are_refused(tmp_path: Path) -> None:
    files = {"config.json": CONFIG, "a.safetensors": small_safetensors(), "b.safetensors": small_safetensors()}
    with pytest.raises(ConfigError, match=r"2 \.safetensors files \(a\.safetensors, b\.safetensors\)"):
        open_safetensors(write_folder(tmp_path, files))


F32_PAIR = tensor_entry("F32", [2], 0, 8)
HUGE = 1 << 60
LIES: dict[str, tuple[bytes, str, str]] = {
    "header of 2**60 bytes": (safetensors_bytes({}, length=HUGE), "header_length", "must be between 2 and 2;"),
    "header longer than the file": (safetensors_bytes({}, length=3), "header_length", "must be between 2 and 2;"),
    "header of no bytes": (safetensors_bytes({}, length=0), "header_length", "between 2"),
    "header not an object": (safetensors_bytes([1, 2]), "header", "lacks a '{' at byte 0"),
    "header of spaces": (safetensors_bytes(b"   "), "header", "lacks a '{'"),
    "header cut off": (safetensors_bytes(b'{"w"'), "header key 0", "lacks a ':'"),
    "header not closed": (safetensors_bytes(b'{"__metadata__":{}'), "header", "lacks a '}'"),
    "text after the header": (safetensors_bytes(b"{}x"), "header", "something after its end"),
    "key not a string": (safetensors_bytes(b"{1:2}"), "header key 0", "not a string"),
    "key not UTF-8": (safetensors_bytes(b'{"\xff":{}}'), "header key 0", "cannot be understood"),
    "key with a wrong escape": (safetensors_bytes(b'{"\\x":{}}'), "header key 0", "cannot be understood"),
    "key of control characters": (safetensors_bytes({"\x1b[2J": F32_PAIR}, bytes(8)), "header key 0", "printable"),
    "empty key": (safetensors_bytes({"": F32_PAIR}, bytes(8)), "header key 0", "printable"),
    "key twice": (
        safetensors_bytes(b'{"w":%(e)s,"w":%(e)s}' % {b"e": json.dumps(F32_PAIR).encode()}, bytes(8)),
        "header key 1",
        "twice",
    ),
    "metadata twice": (safetensors_bytes(b'{"__metadata__":{},"__metadata__":{}}'), "header key 1", "twice"),
    "key twice after metadata": (
        safetensors_bytes(b'{"__metadata__":{},"w":%(e)s,"w":%(e)s}' % {b"e": json.dumps(F32_PAIR).encode()}, bytes(8)),
        "header key 2",
        "twice",
    ),
    "metadata not an object": (safetensors_bytes({"__metadata__": []}), "__metadata__", "lacks a '{'"),
    "metadata not of strings": (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__", "not a string"),
    "metadata nested": (safetensors_bytes(b'{"__metadata__":' + b'{"a":' * 9999), "__metadata__", "not a string"),
    "comma at the end": (safetensors_bytes(b'{"__metadata__":{},}'), "header key 1", "not a string"),
    "entry not an object": (safetensors_bytes({"w": [1]}), "w", "not an object"),
    "entry nested": (safetensors_bytes({"w": {"dtype": {}}}), "w", "not an object"),
    "entry of brackets": (safetensors_bytes(b'{"w":{"shape":' + b"[" * 3000 + b"}}"), "w", "cannot be understood"),
    "entry with another key": (safetensors_bytes({"w": F32_PAIR | {"x": 1}}, bytes(8)), "w", "unknown field"),
    "entry without shape": (safetensors_bytes({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), "w", "shape"),
    "three offsets": (safetensors_bytes({"w": F32_PAIR | {"data_offsets": [0, 8, 9]}}), "w", "cannot be understood"),
    "shape of fractions": (safetensors_bytes({"w": F32_PAIR | {"shape": [1.5]}}), "w", "cannot be understood"),
    "shape of text": (safetensors_bytes({"w": F32_PAIR | {"shape": ["2"]}}), "w", "cannot be understood"),
    "unknown type": (safetensors_bytes({"w": tensor_entry("Q4", [2], 0, 8)}, bytes(8)), "w.dtype", "known types are"),
    "dimension 0": (safetensors_bytes({"w": tensor_entry("F32", [0, 2], 0, 0)}), "w.shape", "is 0 but"),
    "dimension -1": (safetensors_bytes({"w": tensor_entry("F32", [-1, -2], 0, 8)}, bytes(8)), "w.shape", "is -1 but"),
    "dimension 2**70": (safetensors_bytes({"w": tensor_entry("F32", [2**70], 0, 8)}, bytes(8)), "w.shape", "between 1"),
    "elements overflow": (
        safetensors_bytes({"w": tensor_entry("F32", [2**32, 2**32], 0, 8)}, bytes(8)),
        "w.num_elements",
        "between 1",
    ),
    "nine dimensions": (safetensors_bytes({"w": tensor_entry("F32", [1] * 9, 0, 4)}, bytes(4)), "w.n_dims", "0 and 8"),
    "offsets backwards": (safetensors_bytes({"w": tensor_entry("F32", [2], 8, 0)}, bytes(8)), "w.data_offsets", "-8"),
    "offset negative": (safetensors_bytes({"w": tensor_entry("F32", [2], -8, 0)}), "w.data_offsets", "from -8"),
    "fewer bytes than the shape": (
        safetensors_bytes({"w": tensor_entry("F32", [3], 0, 8)}, bytes(8)),
        "w.data_offsets",
        r"spans 8 bytes from 0 but F32 \[3\] takes 12",
    ),
    "beyond the file": (
        safetensors_bytes({"w": tensor_entry("F32", [2], HUGE, HUGE + 8)}, bytes(8)),
        "w.offset",
        "outside the 8 bytes",
    ),
    "overlap": (
        safetensors_bytes({"w": F32_PAIR, "v": tensor_entry("F32", [2], 4, 12)}, bytes(12)),
        "v.offset",
        "overlaps tensor w",
    ),
    "a gap": (
        safetensors_bytes({"w": F32_PAIR, "v": tensor_entry("F32", [2], 12, 20)}, bytes(20)),
        "data_offsets",
        "cover 16 bytes but the file holds 20",
    ),
    "bytes after the last tensor": (safetensors_bytes({"w": F32_PAIR}, bytes(9)), "data_offsets", "holds 9 bytes"),
    "shorter than its length field": (b"\x02\0\0", "file size in bytes", "is 3"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_an_error_that_names_the_field(name: str, tmp_path: Path) -> None:
    content, field, message = LIES[name]
    path = written(tmp_path, content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_tensors(path)
    assert caught.value.field == field
    assert str(path) in caught.value.message


def test_a_header_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        file.truncate(1 << 40)  # sparse: takes no disk
    with pytest.raises(ConfigError, match=f"must be between 2 and {MAX_HEADER_BYTES}"):
        read_tensors(path)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    whole = small_safetensors()
    for length in range(len(whole)):
        with pytest.raises(ConfigError):
            read_tensors(written(tmp_path, whole[:length]))


def test_spaces_in_the_header_are_allowed(tmp_path: Path) -> None:
    header = b'{ "w" : {"shape" : [ 2 ],\n"dtype":"F32", "data_offsets":[0,8] } \t}   \n'
    assert read_tensors(written(tmp_path, safetensors_bytes(header, bytes(8))))["w"].shape == (2,)


def test_a_header_without_tensors_is_allowed(tmp_path: Path) -> None:
    assert read_tensors(written(tmp_path, safetensors_bytes({}))) == {}
