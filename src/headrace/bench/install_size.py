"""How much disk a server's program takes: a figure beside its speed that users pay too."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_MAX_FILES = 500_000


def install_bytes(program: str) -> int | None:
    """Bytes of a program: of its virtual environment if it is in one, else of the file and the libraries beside it.

    ``None`` when it cannot be found. What several environments share (the Python itself) is not counted.
    """
    found = shutil.which(program)
    if found is None:
        return None
    path = Path(found)
    environment = path.parent.parent
    if (environment / "pyvenv.cfg").exists():
        return tree_bytes(environment)
    real = path.resolve()
    libraries = [file for file in real.parent.iterdir() if ".so" in file.name and file.is_file()]
    return sum(file.stat().st_size for file in {real, *(library.resolve() for library in libraries)})


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below, links not followed, one that is hard linked counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            key = (status.st_dev, status.st_ino)
            if key not in seen and len(seen) < _MAX_FILES:
                seen.add(key)
                total += status.st_size
    return total
