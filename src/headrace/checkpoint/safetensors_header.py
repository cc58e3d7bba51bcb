"""The JSON header of one safetensors file, scanned entry by entry.

Follows the format's specification: an object that maps tensor names to ``dtype``, ``shape`` and
``data_offsets``, and ``__metadata__`` to an object of strings. A general JSON parser would build whatever
the header contains before we could look at it, and would keep the last of two equal names; this one holds
a single entry at a time and stops at the first that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from headrace.checkpoint.file_names import shown
from headrace.checkpoint.layout import MAX_TENSORS, Extent, FileChecks
from headrace.checkpoint.tensor_type import TensorType

MAX_DIMS = 8
MAX_METADATA_ENTRIES = 1 << 16

_SPACE = re.compile(rb"[ \t\r\n]*")
# Possessive repeats, so that a long string leaves nothing to come back to.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Neither keys nor values of an entry can contain a brace, and 4096 bytes are many times what one needs.
_ENTRY = re.compile(rb"\{[^{}]{0,4096}+\}")
_METADATA = "__metadata__"

_TYPES: Mapping[str, TensorType] = {
    dtype.label: dtype
    for dtype in (
        TensorType.BOOL,
        TensorType.U8,
        TensorType.I8,
        TensorType.F8_E4M3,
        TensorType.F8_E5M2,
        TensorType.U16,
        TensorType.I16,
        TensorType.F16,
        TensorType.BF16,
        TensorType.U32,
        TensorType.I32,
        TensorType.F32,
        TensorType.U64,
        TensorType.I64,
        TensorType.F64,
    )
}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def parse_header(header: bytes, checks: FileChecks) -> list[Extent]:
    """The tensors of a header, in its order; raises ``ConfigError`` naming the field that is wrong."""
    return _HeaderScanner(header, checks).tensors()


class _HeaderScanner:
    """Walks once over the header; every method consumes what it names and any space after it."""

    def __init__(self, header: bytes, checks: FileChecks) -> None:
        self._header = header
        self._checks = checks
        self._position = 0

    def tensors(self) -> list[Extent]:
        extents: list[Extent] = []
        names: set[str] = set()
        is_open = self._opens("header")
        while is_open:
            self._checks.in_range("tensor_count", len(extents), 0, MAX_TENSORS - 1)
            field = f"header key {len(names)}"
            name = self._checks.new_name(field, self._key(field), names)
            names.add(name)
            if name == _METADATA:
                self._skip_metadata()
            else:
                extents.append(self._extent(name))
            is_open = self._continues("header")
        if self._position != len(self._header):
            raise self._checks.error("header", f"has something after its end, at byte {self._position}")
        return extents

    def _extent(self, name: str) -> Extent:
        entry = self._entry(name)
        if entry.dtype not in _TYPES:
            known = ", ".join(_TYPES)
            raise self._checks.error(f"{name}.dtype", "is not one we know", f"the known types are {known}")
        dtype = _TYPES[entry.dtype]
        self._checks.in_range(f"{name}.n_dims", len(entry.shape), 0, MAX_DIMS)
        num_bytes = self._checks.num_bytes(name, entry.shape, dtype)
        start, stop = entry.data_offsets
        if start < 0 or stop - start != num_bytes:
            shape = f"{dtype.label} {entry.shape}"
            raise self._checks.error(
                f"{name}.data_offsets", f"spans {stop - start} bytes from {start} but {shape} takes {num_bytes}"
            )
        return Extent(name, tuple(entry.shape), dtype, start, stop)

    def _entry(self, name: str) -> _Entry:
        text = self._match(_ENTRY, name, "is not an object of at most 4096 bytes")
        try:
            return msgspec.json.decode(text, type=_Entry)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self._checks.error(name, f"cannot be understood: {shown(str(error))}") from error

    def _skip_metadata(self) -> None:
        is_open = self._opens(_METADATA)
        count = 0
        while is_open:
            count = self._checks.in_range("number of __metadata__ entries", count + 1, 1, MAX_METADATA_ENTRIES)
            self._key(_METADATA)
            self._match(_STRING, _METADATA, "has a value that is not a string")
            is_open = self._continues(_METADATA)

    def _opens(self, field: str) -> bool:
        """Consume the start of an object; whether it has an entry."""
        self._literal(b"{", field)
        if self._header[self._position : self._position + 1] != b"}":
            return True
        self._literal(b"}", field)
        return False

    def _continues(self, field: str) -> bool:
        """Consume what follows an entry; whether that is a comma and another entry."""
        if self._header[self._position : self._position + 1] == b",":
            self._literal(b",", field)
            return True
        self._literal(b"}", field)
        return False

    def _key(self, field: str) -> str:
        text = self._match(_STRING, field, "is not a string")
        self._literal(b":", field)
        try:
            return msgspec.json.decode(text, type=str)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self._checks.error(field, f"cannot be understood: {shown(str(error))}") from error

    def _literal(self, literal: bytes, field: str) -> None:
        if not self._header.startswith(literal, self._position):
            raise self._checks.error(field, f"lacks a '{literal.decode()}' at byte {self._position} of the header")
        self._skip_space(self._position + 1)

    def _match(self, pattern: re.Pattern[bytes], field: str, problem: str) -> bytes:
        match = pattern.match(self._header, self._position)
        if match is None:
            raise self._checks.error(field, f"{problem} at byte {self._position} of the header")
        self._skip_space(match.end())
        return match[0]

    def _skip_space(self, position: int) -> None:
        space = _SPACE.match(self._header, position)
        assert space is not None
        self._position = space.end()


def check_tiling(extents: Sequence[Extent], data_bytes: int, checks: FileChecks) -> None:
    """The format allows no gap: the tensors must cover the data section from its start to its end."""
    covered = sum(extent.stop - extent.start for extent in extents)
    if covered != data_bytes:
        raise checks.error("data_offsets", f"cover {covered} bytes but the file holds {data_bytes} bytes of tensors")
