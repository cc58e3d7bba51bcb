"""The primitive values of a GGUF header: integers, strings and the key/value store, read with bounds.

Follows the GGUF specification (versions 2 and 3, little endian). Knows nothing of what the keys mean,
save that none may occur twice.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.checkpoint.layout import MAX_NAME_BYTES, FileChecks
from headrace.checkpoint.quantization import ByteArray

# The largest vocabularies in use take some 20 MiB of header; a string or array cannot be longer than this.
MAX_HEADER_BYTES = 64 << 20
# Strings become Python objects: all arrays together may hold this many. Arrays of arrays hardly occur.
MAX_ARRAY_STRINGS = 1 << 20
MAX_NESTED_ARRAYS = 4096
MAX_METADATA_ENTRIES = 1 << 16
MAX_ARRAY_DEPTH = 4

_BOOL = 7
_STRING = 8
_ARRAY = 9
_NUMBERS: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# Fewest bytes an element can take: an empty string is its length, an empty array its type and length.
_SMALLEST_STRING = 8
_SMALLEST_ARRAY = 12


class HeaderReader:
    """Walks forward through the header of one file; every step is checked against the header's end."""

    def __init__(self, data: ByteArray, checks: FileChecks) -> None:
        self._data = data
        self._view = memoryview(data[:MAX_HEADER_BYTES].data)
        self._checks = checks
        self._num_strings_left = MAX_ARRAY_STRINGS
        self._num_arrays_left = MAX_NESTED_ARRAYS
        self.position = 0

    @property
    def num_bytes_left(self) -> int:
        return len(self._view) - self.position

    def u32(self, field: str) -> int:
        return int(struct.unpack_from("<I", self._view, self._advance(field, 4))[0])

    def u64(self, field: str) -> int:
        return int(struct.unpack_from("<Q", self._view, self._advance(field, 8))[0])

    def count(self, field: str, smallest: int, limit: int) -> int:
        """Number of things that follow, each at least ``smallest`` bytes long and at most ``limit`` of them."""
        count = self.u64(field)
        room = self.num_bytes_left // smallest
        return self._checks.in_range(field, count, 0, min(limit, room))

    def string(self, field: str, limit: int = MAX_HEADER_BYTES) -> str:
        length = self.count(field, 1, limit)
        start = self._advance(field, length)
        try:
            return str(self._view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self._checks.error(field, "is not UTF-8 text") from error

    def metadata(self, num_entries: int) -> dict[str, object]:
        """The key/value store: numbers, booleans and text as Python values, arrays as lists or NumPy arrays."""
        entries: dict[str, object] = {}
        for index in range(num_entries):
            field = f"metadata[{index}].key"
            key = self._checks.new_name(field, self.string(field, MAX_NAME_BYTES), entries)
            entries[key] = self._value(key, self.u32(f"{key}.type"))
        return entries

    def _value(self, field: str, value_type: int) -> object:
        if value_type == _STRING:
            return self.string(field)
        if value_type == _ARRAY:
            return self._array(field, MAX_ARRAY_DEPTH)
        return self._numbers(field, value_type, 1)[0].item()

    def _array(self, field: str, depth: int) -> object:
        element_type = self.u32(f"{field}.type")
        if element_type == _STRING:
            return self._strings(field)
        if element_type == _ARRAY:
            return self._arrays(field, depth)
        itemsize = self._number_type(field, element_type).itemsize
        return self._numbers(field, element_type, self.count(f"{field}.length", itemsize, MAX_HEADER_BYTES))

    def _arrays(self, field: str, depth: int) -> list[object]:
        if depth == 1:
            raise self._checks.error(field, f"has arrays nested deeper than {MAX_ARRAY_DEPTH}")
        count = self.count(f"{field}.length", _SMALLEST_ARRAY, self._num_arrays_left)
        self._num_arrays_left -= count
        return [self._array(field, depth - 1) for _ in range(count)]

    def _strings(self, field: str) -> list[str]:
        """As many calls of ``string``, in one loop because vocabularies have hundreds of thousands."""
        count = self.count(f"{field}.length", _SMALLEST_STRING, self._num_strings_left)
        self._num_strings_left -= count
        view, position, end = self._view, self.position, len(self._view)
        unpack_length = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack_length(view, position)[0]
                if position > end:
                    raise self._checks.error(f"{field}[{len(strings)}].length", "reaches beyond the header")
                strings.append(str(view[start:position], "utf-8"))
        except UnicodeDecodeError as error:
            raise self._checks.error(f"{field}[{len(strings)}]", "is not UTF-8 text") from error
        except struct.error as error:
            raise self._checks.error(f"{field}[{len(strings)}].length", "lies beyond the header") from error
        self.position = position
        return strings

    def _numbers(self, field: str, value_type: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        dtype = self._number_type(field, value_type)
        start = self._advance(field, count * dtype.itemsize)
        values = self._data[start : self.position].view(dtype).copy()
        if value_type != _BOOL:
            return values
        if values.max(initial=0) > 1:
            raise self._checks.error(field, "is a boolean that is neither 0 nor 1")
        return values.astype(np.bool_)

    def _number_type(self, field: str, value_type: int) -> np.dtype[Any]:
        if value_type not in _NUMBERS:
            raise self._checks.error(f"{field}.type", f"is {value_type}, which is no GGUF value type")
        return _NUMBERS[value_type]

    def _advance(self, field: str, num_bytes: int) -> int:
        """Step over ``num_bytes`` and return where they start."""
        if num_bytes > self.num_bytes_left:
            raise self._checks.error(field, f"needs {num_bytes} bytes but {self.num_bytes_left} are left of the header")
        start = self.position
        self.position += num_bytes
        return start
