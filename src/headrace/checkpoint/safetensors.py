"""Folders in the Hugging Face layout: ``config.json`` and safetensors weights, as memory-mapped tensor views.

Weights are ``model.safetensors``, or the shards that ``model.safetensors.index.json`` lists, or the only
``.safetensors`` file there is. Nothing else in the folder is opened: no Python, no pickle.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.file_names import INDEX_FILE, SINGLE_FILE, shown
from headrace.checkpoint.json_file import read_json, read_json_object
from headrace.checkpoint.layout import FileChecks, map_file
from headrace.checkpoint.safetensors_header import check_tiling, parse_header
from headrace.checkpoint.tensor_view import TensorView
from headrace.core.errors import ConfigError

CONFIG_FILE = "config.json"

MAX_HEADER_BYTES = 16 << 20
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 4096
_LENGTH_BYTES = 8


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def open_safetensors(path: Path) -> Checkpoint:
    """Map the weights of a folder, or of one ``.safetensors`` file with its ``config.json`` beside it.

    Costs time and memory in proportion to the headers alone. Raises ``ConfigError`` naming the file and the
    field that is wrong.
    """
    folder = path if path.is_dir() else path.parent
    config_path = folder / CONFIG_FILE
    if not config_path.is_file():
        raise ConfigError(
            f"{folder} has no {CONFIG_FILE}, so the kind of model is unknown; "
            "copy it from where the weights came from, or use a GGUF file",
            CONFIG_FILE,
        )
    generation_path = folder / "generation_config.json"
    return Checkpoint(
        path=folder,
        format="safetensors",
        tensors=_folder_tensors(folder) if path.is_dir() else read_tensors(path),
        metadata=read_json_object(config_path),
        generation_config=read_json_object(generation_path) if generation_path.is_file() else {},
    )


def read_tensors(path: Path) -> dict[str, TensorView]:
    """The tensors of one safetensors file."""
    data = map_file(path)
    checks = FileChecks(path)
    checks.in_range("file size in bytes", len(data), _LENGTH_BYTES + 2, 1 << 60)
    (header_bytes,) = struct.unpack_from("<Q", data.data)
    limit = min(MAX_HEADER_BYTES, len(data) - _LENGTH_BYTES)
    data_start = _LENGTH_BYTES + checks.in_range("header_length", header_bytes, 2, limit)
    extents = parse_header(data[_LENGTH_BYTES:data_start].tobytes(), checks)
    section = data[data_start:]
    tensors = checks.views(section, extents)
    check_tiling(extents, len(section), checks)
    return tensors


def _folder_tensors(folder: Path) -> dict[str, TensorView]:
    if (folder / INDEX_FILE).is_file():
        return _sharded_tensors(folder)
    if (folder / SINGLE_FILE).is_file():
        return read_tensors(folder / SINGLE_FILE)
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    if len(files) != 1:
        raise ConfigError(
            f"{folder} has {len(files)} .safetensors files ({', '.join(map(shown, files[:8]))}) but neither "
            f"{SINGLE_FILE} nor {INDEX_FILE}, so which to use is unknown; give the path of one file",
            INDEX_FILE,
        )
    return read_tensors(folder / files[0])


def _sharded_tensors(folder: Path) -> dict[str, TensorView]:
    """The tensors of all shards the index names; each name in one shard, and in the one the index says."""
    checks = FileChecks(folder / INDEX_FILE)
    weight_map = read_json(checks.path, _Index, MAX_INDEX_BYTES).weight_map
    shard_names = sorted(set(weight_map.values()))
    checks.in_range("number of shards in weight_map", len(shard_names), 1, MAX_SHARDS)
    for shard_name in shard_names:
        _check_shard_name(folder, shard_name, checks)
    tensors: dict[str, TensorView] = {}
    shard_of: dict[str, str] = {}
    for shard_name in shard_names:
        for name, tensor in read_tensors(folder / shard_name).items():
            if name in tensors:
                raise checks.error("weight_map", f"has {name} in both {shard_of[name]} and {shard_name}")
            tensors[name], shard_of[name] = tensor, shard_name
    for name, shard_name in weight_map.items():
        if shard_of.get(name) != shard_name:
            raise checks.error("weight_map", f"says '{shown(name)}' is in {shard_name}, but it is not")
    return tensors


def _check_shard_name(folder: Path, name: str, checks: FileChecks) -> None:
    """A shard lies in the folder itself: its name must not lead anywhere else."""
    is_plain = name.isprintable() and not name.startswith(".") and "/" not in name and "\\" not in name
    if not is_plain or not name.endswith(".safetensors") or len(name) > 200:
        raise checks.error("weight_map", f"names a shard '{shown(name)}', which is not a plain .safetensors file name")
    if not (folder / name).is_file():
        raise checks.error("weight_map", f"names the shard {name}, which is missing")
