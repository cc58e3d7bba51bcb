"""GGUF files (versions 2 and 3, little endian) as memory-mapped tensor views.

Follows the GGUF specification: magic, version, counts, key/value store, tensor infos, padding to the
alignment, tensor data. Every field is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.gguf_metadata import MAX_METADATA_ENTRIES, HeaderReader
from headrace.checkpoint.layout import MAX_NAME_BYTES, MAX_TENSORS, Extent, FileChecks, map_file
from headrace.checkpoint.tensor_type import TensorType

MAGIC = b"GGUF"

_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16
_DEFAULT_ALIGNMENT = 32
# Fewest bytes of a key/value pair (key length, one letter, type, value) and of a tensor info (name length,
# one letter, number of dimensions, one dimension, type, offset).
_SMALLEST_ENTRY = 14
_SMALLEST_INFO = 33

_TYPES: Mapping[int, TensorType] = {
    0: TensorType.F32,
    1: TensorType.F16,
    2: TensorType.Q4_0,
    3: TensorType.Q4_1,
    6: TensorType.Q5_0,
    7: TensorType.Q5_1,
    8: TensorType.Q8_0,
    10: TensorType.Q2_K,
    11: TensorType.Q3_K,
    12: TensorType.Q4_K,
    13: TensorType.Q5_K,
    14: TensorType.Q6_K,
    16: TensorType.IQ2_XXS,
    17: TensorType.IQ2_XS,
    18: TensorType.IQ3_XXS,
    19: TensorType.IQ1_S,
    20: TensorType.IQ4_NL,
    21: TensorType.IQ3_S,
    22: TensorType.IQ2_S,
    23: TensorType.IQ4_XS,
    24: TensorType.I8,
    25: TensorType.I16,
    26: TensorType.I32,
    27: TensorType.I64,
    28: TensorType.F64,
    29: TensorType.IQ1_M,
    30: TensorType.BF16,
    34: TensorType.TQ1_0,
    35: TensorType.TQ2_0,
    39: TensorType.MXFP4,
}


def open_gguf(path: Path) -> Checkpoint:
    """Map ``path`` and read its header.

    Costs time and memory in proportion to the header alone. Raises ``ConfigError`` naming the field that is
    wrong.
    """
    data = map_file(path)
    checks = FileChecks(path)
    reader = HeaderReader(data, checks)
    _check_version(reader, checks)
    num_tensors = reader.count("tensor_count", _SMALLEST_INFO, MAX_TENSORS)
    num_entries = reader.count("metadata_count", _SMALLEST_ENTRY, MAX_METADATA_ENTRIES)
    metadata = reader.metadata(num_entries)
    _refuse_split(metadata, checks)
    alignment = _alignment(metadata, checks)
    extents = _tensor_infos(reader, checks, num_tensors, alignment)
    data_start = -(-reader.position // alignment) * alignment
    return Checkpoint(path, "gguf", checks.views(data[data_start:], extents), metadata)


def _check_version(reader: HeaderReader, checks: FileChecks) -> None:
    if reader.u32("magic") != int.from_bytes(MAGIC, "little"):
        raise checks.error("magic", "is not 'GGUF'", "give the path of a GGUF file")
    version = reader.u32("version")
    if version in _VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise checks.error("version", "is big endian", "only little-endian files can be read; convert the model again")
    raise checks.error("version", f"is {version} but only 2 and 3 are known", "convert the model with a current tool")


def _refuse_split(metadata: Mapping[str, object], checks: FileChecks) -> None:
    num_files = metadata.get("split.count", 1)
    if not isinstance(num_files, int) or num_files > 1:
        raise checks.error(
            "split.count", f"says the model is split over {num_files} files", "merge them into one GGUF file first"
        )


def _alignment(metadata: Mapping[str, object], checks: FileChecks) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise checks.error("general.alignment", f"must be a power of two up to {_MAX_ALIGNMENT}")
    return alignment


def _tensor_infos(reader: HeaderReader, checks: FileChecks, num_tensors: int, alignment: int) -> list[Extent]:
    extents: list[Extent] = []
    names: set[str] = set()
    for index in range(num_tensors):
        field = f"tensor[{index}].name"
        name = checks.new_name(field, reader.string(field, MAX_NAME_BYTES), names)
        names.add(name)
        extents.append(_tensor_info(reader, checks, name, alignment))
    return extents


def _tensor_info(reader: HeaderReader, checks: FileChecks, name: str, alignment: int) -> Extent:
    num_dims = checks.in_range(f"{name}.n_dims", reader.u32(f"{name}.n_dims"), 1, _MAX_DIMS)
    # Stored with the contiguous dimension first; ours is the other way round.
    shape = tuple(reader.u64(f"{name}.shape") for _ in range(num_dims))[::-1]
    type_id = reader.u32(f"{name}.type")
    if type_id not in _TYPES:
        raise checks.error(f"{name}.type", f"is {type_id}, which is no tensor type we know", "use another quantisation")
    dtype = _TYPES[type_id]
    num_bytes = checks.num_bytes(name, shape, dtype)
    start = reader.u64(f"{name}.offset")
    if start % alignment:
        raise checks.error(f"{name}.offset", f"is {start} but must be a multiple of the alignment {alignment}")
    return Extent(name, shape, dtype, start, start + num_bytes)
