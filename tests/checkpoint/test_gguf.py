"""GGUF files: right ones are read, every kind of lie is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.checkpoint.gguf import open_gguf
from headrace.checkpoint.tensor_view import TensorType
from headrace.core.errors import ConfigError
from tests.checkpoint.builders import (
    ARRAY,
    BOOL,
    F32,
    GGUF,
    STRING,
    TYPE_Q8_0,
    U8,
    U64,
    Info,
    entry,
    gguf_string,
    small_gguf,
    strings_entry,
    text_entry,
    u32_entry,
)


def test_tensors_and_metadata_come_out_as_they_were_written(tmp_path: Path) -> None:
    checkpoint = open_gguf(small_gguf().write(tmp_path / "m.gguf"))
    assert checkpoint.format == "gguf"
    assert checkpoint.folder == tmp_path
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert checkpoint.metadata["llama.block_count"] == 1
    assert checkpoint.metadata["tokenizer.ggml.add_bos_token"] is True
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == ["<s>", "a", "é", ""]
    np.testing.assert_array_equal(checkpoint.metadata["tokenizer.ggml.scores"], [0.0, -1.0, -2.5, 0.5])
    norm = checkpoint.tensors["output_norm.weight"]
    assert (norm.shape, norm.dtype) == ((2, 3), TensorType.F32)
    np.testing.assert_array_equal(norm.to_float32(), np.arange(6, dtype=np.float32).reshape(2, 3))
    assert checkpoint.tensors["blk.0.w"].shape == (2, 32)
    assert checkpoint.num_parameters == 6 + 64
    assert checkpoint.num_bytes == 24 + 68


def test_version_2_is_read_as_well(tmp_path: Path) -> None:
    file = small_gguf()
    file.version = 2
    assert len(open_gguf(file.write(tmp_path / "m.gguf")).tensors) == 2


def test_a_file_written_by_the_reference_writer_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "reference.gguf"
    rng = np.random.default_rng(0)
    tensors = {"w": rng.standard_normal((4, 64), np.float32), "v": rng.standard_normal(5).astype(np.float16)}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("x.floats", [1.5, 2.5])
    writer.add_array("x.texts", ["a", "bc"])
    writer.add_float64("x.double", 0.1)
    writer.add_int64("x.negative", -5)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    quantised = gguf.quantize(tensors["w"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_gguf(path)
    for name, values in tensors.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].to_float32(), values.astype(np.float32))
    expected = gguf.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(checkpoint.tensors["q"].to_float32(), expected)
    assert checkpoint.metadata["x.texts"] == ["a", "bc"]
    assert checkpoint.metadata["x.double"] == 0.1
    assert checkpoint.metadata["x.negative"] == -5
    assert list(checkpoint.metadata["x.floats"]) == [1.5, 2.5]


def test_nested_arrays_are_lists_of_arrays(tmp_path: Path) -> None:
    inner = struct.pack("<IQ2B", U8, 2, 7, 8)
    file = GGUF(entries=[entry("x", ARRAY, struct.pack("<IQ", ARRAY, 2) + inner + inner)])
    value = open_gguf(file.write(tmp_path / "m.gguf")).metadata["x"]
    assert [list(part) for part in value] == [[7, 8], [7, 8]]


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0)


def one_tensor(**changes: object) -> GGUF:
    info = {"name": "w", "dims": [32, 2], "type_id": TYPE_Q8_0, "offset": 0} | changes
    return GGUF(infos=[Info(**info)], data=bytes(68))  # type: ignore[arg-type]


def with_entry(*entries: bytes) -> GGUF:
    return GGUF(entries=list(entries), alignment=1)


HUGE = 1 << 60
LIES: dict[str, tuple[Callable[[], GGUF], str, str]] = {
    "another magic": (lambda: GGUF(magic=b"GGML"), "magic", "not 'GGUF'"),
    "version 1": (lambda: GGUF(version=1), "version", "only 2 and 3"),
    "version from the future": (lambda: GGUF(version=4), "version", "only 2 and 3"),
    "big endian": (lambda: GGUF(version=3 << 24), "version", "big endian"),
    "2**60 tensors": (lambda: GGUF(num_tensors=HUGE), "tensor_count", "between 0 and"),
    "2**60 metadata": (lambda: GGUF(num_entries=HUGE), "metadata_count", "between 0 and"),
    "one tensor too many": (lambda: GGUF(num_tensors=1), "tensor[0].name", "printable"),
    "key of 2**60 bytes": (
        lambda: with_entry(struct.pack("<Q", HUGE) + bytes(20)),
        "metadata[0].key",
        "between 0 and",
    ),
    "empty key": (lambda: with_entry(text_entry("", "x")), "metadata[0].key", "printable"),
    "key with an escape": (lambda: with_entry(text_entry("\x1b[2J", "x")), "metadata[0].key", r"\\x1b"),
    "key twice": (lambda: with_entry(text_entry("k", "x"), text_entry("k", "y")), "metadata[1].key", "twice"),
    "key not UTF-8": (lambda: with_entry(entry(b"\xff\xfe", U8, b"\0" * 8)), "metadata[0].key", "UTF-8"),
    "unknown value type": (lambda: with_entry(entry("k", 13, bytes(8))), "k.type", "13"),
    "value not UTF-8": (lambda: with_entry(text_entry("k", b"\xff")), "k", "UTF-8"),
    "string of 2**60 bytes": (lambda: with_entry(entry("k", STRING, struct.pack("<Q", HUGE))), "k", "between 0 and"),
    "boolean of 2": (lambda: with_entry(entry("k", BOOL, b"\x02" * 8)), "k", "neither 0 nor 1"),
    "value cut off": (lambda: with_entry(entry("kkkkk", U64, b"\0")), "kkkkk", "needs 8 bytes"),
    "unknown element type": (lambda: with_entry(entry("k", ARRAY, struct.pack("<IQ", 99, 0))), "k.type", "99"),
    "2**60 numbers": (lambda: with_entry(entry("k", ARRAY, struct.pack("<IQ", F32, HUGE))), "k.length", "between"),
    "2**60 strings": (lambda: with_entry(entry("k", ARRAY, struct.pack("<IQ", STRING, HUGE))), "k.length", "between"),
    "2**60 arrays": (lambda: with_entry(entry("k", ARRAY, struct.pack("<IQ", ARRAY, HUGE))), "k.length", "between"),
    "string in an array too long": (
        lambda: with_entry(
            entry("k", ARRAY, struct.pack("<IQ", STRING, 2) + gguf_string("ab") + struct.pack("<Q", HUGE))
        ),
        "k[1].length",
        "beyond the header",
    ),
    "string in an array not UTF-8": (
        lambda: with_entry(entry("k", ARRAY, struct.pack("<IQ", STRING, 1) + gguf_string(b"\xff"))),
        "k[0]",
        "UTF-8",
    ),
    "strings running out": (
        lambda: with_entry(entry("k", ARRAY, struct.pack("<IQ", STRING, 2) + gguf_string("abcdefgh"))),
        "k[1].length",
        "beyond the header",
    ),
    "arrays nested too deep": (lambda: with_entry(entry("k", ARRAY, nested(5))), "k", "deeper than 4"),
    "arrays nested 10,000 deep": (lambda: with_entry(entry("k", ARRAY, nested(10_000))), "k", "deeper than 4"),
    "alignment 0": (lambda: with_entry(u32_entry("general.alignment", 0)), "general.alignment", "power of two"),
    "alignment 12": (lambda: with_entry(u32_entry("general.alignment", 12)), "general.alignment", "power of two"),
    "alignment of text": (
        lambda: with_entry(text_entry("general.alignment", "x")),
        "general.alignment",
        "power of two",
    ),
    "a piece of a split model": (lambda: with_entry(u32_entry("split.count", 3)), "split.count", "merge"),
    "split count of an array": (lambda: with_entry(strings_entry("split.count", ["a"])), "split.count", "merge"),
    "tensor name too long": (lambda: one_tensor(name="n" * 1025), "tensor[0].name", "between 0 and 1024"),
    "tensor name empty": (lambda: one_tensor(name="", dims=[32, 2, 1]), "tensor[0].name", "printable"),
    "no dimensions": (lambda: one_tensor(dims=[], name="w" * 9), "wwwwwwwww.n_dims", "between 1 and 4"),
    "five dimensions": (lambda: one_tensor(dims=[32, 2, 1, 1, 1]), "w.n_dims", "between 1 and 4"),
    "2**32 dimensions": (lambda: one_tensor(num_dims=2**32 - 1), "w.n_dims", "between 1 and 4"),
    "dimension 0": (lambda: one_tensor(dims=[32, 0]), "w.shape", "is 0"),
    "dimension -1": (lambda: one_tensor(dims=[32, 2**64 - 1]), "w.shape", "must be between 1"),
    "elements overflow 64 bits": (lambda: one_tensor(dims=[1 << 32, 1 << 32]), "w.num_elements", "must be between 1"),
    "row is not whole blocks": (lambda: one_tensor(dims=[2, 32]), "w.shape", "whole blocks of 32"),
    "unknown tensor type": (lambda: one_tensor(type_id=4), "w.type", "no tensor type we know"),
    "offset not aligned": (lambda: one_tensor(offset=1), "w.offset", "multiple of the alignment 32"),
    "offset beyond the file": (lambda: one_tensor(offset=HUGE), "w.offset", "outside the 68 bytes"),
    "larger than the file": (lambda: one_tensor(dims=[32, 3]), "w.offset", "outside the 68 bytes"),
    "same name twice": (
        lambda: GGUF(infos=[Info("w", [1], offset=0), Info("w", [1], offset=32)], data=bytes(64)),
        "tensor[1].name",
        "twice",
    ),
    "overlap": (
        lambda: GGUF(infos=[Info("w", [9], offset=0), Info("v", [1], offset=32)], data=bytes(64)),
        "v.offset",
        "overlaps tensor w",
    ),
    "no data at all": (lambda: GGUF(infos=[Info("w", [9])]), "w.offset", "outside the 0 bytes"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_an_error_that_names_the_field(name: str, tmp_path: Path) -> None:
    build, field, message = LIES[name]
    path = build().write(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match=message) as caught:
        open_gguf(path)
    assert caught.value.field == field
    assert str(path) in caught.value.message


def test_every_truncation_is_an_error_or_lacks_nothing(tmp_path: Path) -> None:
    whole = small_gguf().encode()
    path = tmp_path / "m.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError):
            open_gguf(path)


def test_an_empty_file_a_folder_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    for name, message in (("empty.gguf", "is empty"), (".", "not a regular file"), ("none.gguf", "not a regular file")):
        with pytest.raises(ConfigError, match=message):
            open_gguf(tmp_path / name)
