"""Compiled folders that serving made for itself, so that the next start maps what this one packed.

Owns where they are, which of them still is what a model's files say, and their making and removal. A folder is
good for the files it was made from (by name, size and time of change), the weight format asked for and the build
of the kernels; anything else about it is refused when it is opened, and then it is as if there were none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.checkpoint.model_cache import cache_folder
from headrace.core.compiled_files import is_compiled
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.progress import ProgressUnit

logger = logging.getLogger(__name__)

Opened = TypeVar("Opened")

COMPILED_FOLDER = "compiled"
"""Its name in the cache folder."""

LEAST_BYTES = 16 << 20
"""Smaller models are packed in less time than it takes to look for a folder."""

THREAD_NAME = "compiled-cache"

_BYTES_PER_S = 100e6
_KEY_CHARS = 16


def compiled_cache(config: EngineConfig) -> CompiledCache:
    """The cache that a config allows for."""
    is_used = config.compile_cache and config.backend != "torch"
    return CompiledCache(cache_folder() / COMPILED_FOLDER if is_used else None)


class Unhurried:
    """Progress that leaves most of the time to others: no more than 100 MB are read or written a second.

    Low priority would not do: a thread that holds the interpreter's lock while it waits for a core makes the engine
    wait with it.
    """

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        pass

    def advance(self, amount: int) -> None:
        time.sleep(amount / _BYTES_PER_S)

    def finish(self) -> None:
        pass


class CompiledCache:
    """The folders below ``root``; without one, a cache that keeps nothing. Several processes may use it at a time."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def opened(self, model: Path, dtype: str, open_path: Callable[[Path], Opened]) -> Opened:
        """What ``open_path`` makes of the folder of ``model``, or of ``model`` where there is none that is any good."""
        folder = self._folder(model, dtype)
        if folder is None or not is_compiled(folder):
            return open_path(model)
        try:
            return open_path(folder)
        except ConfigError as error:
            logger.warning("the compiled folder is of no use and is made again: %s", error.message)
            shutil.rmtree(folder, ignore_errors=True)
            return open_path(model)

    def keep(self, model: Path, dtype: str, write: Callable[[Path], object]) -> threading.Thread | None:
        """Let ``write`` make the folder of ``model``, on a thread that does not outlive the process.

        ``write`` raises ``ConfigError`` if it cannot, which is only logged. ``None`` if ``model`` has no folder here:
        nothing is kept, its files cannot be read, or it is itself a folder of this kind.
        """
        folder = self._folder(model, dtype)
        if folder is None:
            return None
        thread = threading.Thread(target=self._write, args=(folder, write), name=THREAD_NAME, daemon=True)
        thread.start()
        return thread

    def forget(self, model: Path) -> None:
        """Remove every folder of ``model``, which may be gone already."""
        if self._root is not None:
            for folder in self._root.glob(f"*-{_key(str(model.resolve()))}-*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path, write: Callable[[Path], object]) -> None:
        try:
            _remove_older(folder)
            write(folder)
        except (ConfigError, OSError) as error:
            logger.info("the packed weights are not kept for the next start: %s", error)
        else:
            logger.info("kept the packed weights in %s; the next start maps them", folder)

    def _folder(self, model: Path, dtype: str) -> Path | None:
        """The folder's path, whether it exists or not."""
        path = model.resolve()
        if self._root is None or is_compiled(path):
            return None
        try:
            state = [_state(file) for file in (*_files(path), _kernels_file())]
        except OSError:
            return None
        return self._root / "-".join([_plain(path.name), _key(str(path)), dtype, _key(state)])


def _remove_older(folder: Path) -> None:
    """Remove what was made for earlier files of the same model, and what killed processes left half made."""
    same_model = folder.name.rsplit("-", 1)[0]
    for entry in folder.parent.glob(f"{same_model}-*"):
        if entry.name != folder.name:
            shutil.rmtree(entry, ignore_errors=True)
    for entry in folder.parent.glob(".*"):
        pid = entry.name.rsplit(".", 1)[-1]
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(entry, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # somebody else's
    return True


def _files(model: Path) -> list[Path]:
    """The files a model consists of."""
    return sorted(entry for entry in model.iterdir() if entry.is_file()) if model.is_dir() else [model]


def _kernels_file() -> Path:
    """The module that packs and reads weights; found without loading it."""
    spec = importlib.util.find_spec("headrace.native._native")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _state(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return file.name, stat.st_size, stat.st_mtime_ns


def _key(facts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:_KEY_CHARS]


def _plain(name: str) -> str:
    """Enough of a name to recognise a folder by."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", name)[:60].lstrip(".") or "model"
