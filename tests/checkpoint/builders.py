"""Model files written by hand, right or wrong in any field a test likes."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
TYPE_F32, TYPE_Q8_0 = 0, 8


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, value_type: int, payload: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", value_type) + payload


def text_entry(key: str, value: str | bytes) -> bytes:
    return entry(key, STRING, gguf_string(value))


def u32_entry(key: str, value: int) -> bytes:
    return entry(key, U32, struct.pack("<I", value))


def strings_entry(key: str, values: Sequence[str]) -> bytes:
    payload = struct.pack("<IQ", STRING, len(values)) + b"".join(map(gguf_string, values))
    return entry(key, ARRAY, payload)


def floats_entry(key: str, values: Sequence[float]) -> bytes:
    return entry(key, ARRAY, struct.pack(f"<IQ{len(values)}f", F32, len(values), *values))


@dataclass
class Info:
    """One tensor info; ``dims`` in the file's order, contiguous dimension first."""

    name: str | bytes
    dims: Sequence[int]
    type_id: int = TYPE_F32
    offset: int = 0
    num_dims: int | None = None

    def encode(self) -> bytes:
        num_dims = len(self.dims) if self.num_dims is None else self.num_dims
        return gguf_string(self.name) + struct.pack(
            f"<I{len(self.dims)}QIQ", num_dims, *self.dims, self.type_id, self.offset
        )


@dataclass
class GGUF:
    """A GGUF file with a plausible default in every field."""

    entries: list[bytes] = field(default_factory=lambda: [text_entry("general.architecture", "llama")])
    infos: list[Info] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    num_tensors: int | None = None
    num_entries: int | None = None

    def encode(self) -> bytes:
        num_tensors = len(self.infos) if self.num_tensors is None else self.num_tensors
        num_entries = len(self.entries) if self.num_entries is None else self.num_entries
        header = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_entries)
        header += b"".join(self.entries) + b"".join(info.encode() for info in self.infos)
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.encode())
        return path


def small_gguf() -> GGUF:
    """Two tensors, one quantised, and a value of every shape a tokenizer stores."""
    values = np.arange(6, dtype="<f4").tobytes()
    padding = bytes(-len(values) % 32)
    quantised = np.random.default_rng(1).integers(0, 60, 2 * 34, dtype=np.uint8).tobytes()
    return GGUF(
        entries=[
            text_entry("general.architecture", "llama"),
            u32_entry("llama.block_count", 1),
            entry("tokenizer.ggml.add_bos_token", BOOL, b"\x01"),
            strings_entry("tokenizer.ggml.tokens", ["<s>", "a", "é", ""]),
            floats_entry("tokenizer.ggml.scores", [0.0, -1.0, -2.5, 0.5]),
        ],
        infos=[Info("output_norm.weight", [3, 2]), Info("blk.0.w", [32, 2], TYPE_Q8_0, 32)],
        data=values + padding + quantised,
    )


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor_entry(dtype: str, shape: Sequence[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def small_safetensors(prefix: str = "") -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        f"{prefix}a": tensor_entry("F32", [2, 3], 0, 24),
        f"{prefix}b": tensor_entry("F16", [4], 24, 32),
    }
    return safetensors_bytes(header, np.arange(6, dtype="<f4").tobytes() + np.ones(4, "<f2").tobytes())


def write_folder(folder: Path, files: Mapping[str, bytes | object]) -> Path:
    """A model folder; values that are not bytes are written as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def write_wheel(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    return path
