"""The disk tier: KV blocks in one file that nobody else can see.

Owns the file, its space and a checksum of every block. The file has no name: it is unlinked as soon as it is open, so
the system removes it with the process, however that ends, and what clients wrote is not left on a disk. All of its
space is taken at the start, since a disk that is full later would end the process.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.core.units import format_bytes

ByteArray = NDArray[np.uint8]

_NEVER_WRITTEN = -1


class DiskBlocks:
    """Blocks of one size in a memory-mapped file, checked when they are read."""

    def __init__(self, path: Path, num_blocks: int, block_bytes: int) -> None:
        """Create the file. Raises ``ConfigError`` if it exists or its disk has too little room."""
        num_bytes = num_blocks * block_bytes
        descriptor = _create(path)
        try:
            os.unlink(path)
            _reserve(descriptor, num_bytes, path)
            self._map = mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
        self._blocks: ByteArray = np.frombuffer(self._map, np.uint8).reshape(num_blocks, block_bytes)
        self._checksums = [_NEVER_WRITTEN] * num_blocks

    def write(self, slot: int, content: ByteArray) -> None:
        """Keep a block's content, ``[block_bytes]``."""
        self._blocks[slot] = content
        self._checksums[slot] = zlib.crc32(content.data)

    def read(self, slot: int, content: ByteArray) -> bool:
        """Copy a slot to ``content``, ``[block_bytes]``; False if that is not what was written there."""
        content[:] = self._blocks[slot]
        return zlib.crc32(content.data) == self._checksums[slot]

    def close(self) -> None:
        """Give the space back."""
        self._blocks = np.empty((0, 0), np.uint8)  # a map that is looked at cannot be closed
        self._map.close()


def _create(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"disk_kv_cache is {path}, which exists; name a file that does not, or remove it", "disk_kv_cache"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"disk_kv_cache is {path}, which cannot be created ({error.strerror}); name a file in a folder that can be "
            "written",
            "disk_kv_cache",
        ) from error


def _reserve(descriptor: int, num_bytes: int, path: Path) -> None:
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        raise ConfigError(
            f"disk_kv_cache_bytes is {format_bytes(num_bytes)}, which the disk of {path.parent} does not have "
            f"({error.strerror}); lower --disk-kv-cache-bytes",
            "disk_kv_cache_bytes",
        ) from error
