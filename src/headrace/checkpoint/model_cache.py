"""The folder of downloaded models: where each lies, who may write to it, and what a broken download leaves.

A model's folder appears under its final name in one rename, complete; until then it is staged elsewhere.
Writers of one model take turns by a lock that ends with its process. Does not know how files are fetched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from headrace.checkpoint.catalog import PackagedModel, packaged_model
from headrace.core.errors import ConfigError
from headrace.core.progress import Progress

CACHE_VARIABLE = "HEADRACE_CACHE_DIR"


def cache_folder() -> Path:
    """``HEADRACE_CACHE_DIR``, or ``~/.cache/headrace``; it need not exist."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "headrace"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A packaged model whose file is here."""

    model: PackagedModel
    path: Path
    num_bytes: int


class ModelCache:
    """Models below one root folder: ``models/pypi/NAME/VERSION/FILE.gguf``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._models = root / "models"
        self._packages = self._models / "pypi"
        self._staging = self._models / ".staging"
        self._locks = self._models / ".locks"

    def find(self, model: PackagedModel) -> Path | None:
        """The model's file, if it is here and as long as it should be. Raises ``ConfigError`` if one cannot look."""
        with self._explained("read"):
            files = list(self.folder(model).glob("*.gguf"))
            if len(files) != 1:
                return None
            is_whole = model.num_bytes is None or files[0].stat().st_size == model.num_bytes
            return files[0] if is_whole else None

    def folder(self, model: PackagedModel) -> Path:
        return self._packages / model.name / model.version

    def held_bytes(self, model: PackagedModel) -> int | None:
        """What the model's folder takes on disk, whole or damaged; ``None`` if there is none."""
        with self._explained("read"):
            folder = self.folder(model)
            return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else None

    def entries(self) -> list[CachedModel]:
        """All models that are here, by name and version. Raises ``ConfigError`` if one cannot look."""
        found = []
        with self._explained("read"):
            folders = sorted(self._packages.glob("*/*"))
        for folder in folders:
            try:
                model = packaged_model(f"{folder.parent.name}=={folder.name}")
            except ConfigError:
                continue  # not a folder of ours
            path = self.find(model)
            if path is not None:
                found.append(CachedModel(model, path, path.stat().st_size))
        return found

    @contextmanager
    def writing(self, model: PackagedModel, progress: Progress) -> Iterator[Path]:
        """Hold the model's lock, waiting for another process if need be, with a fresh folder to stage in.

        The folder is gone afterwards, and so is what dead processes left of theirs.
        """
        with self._open_lock(_key(model)) as lock:
            if not _try_lock(lock):
                progress.start(f"waiting for another process that is fetching {model.name}", None, "items")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                finally:
                    progress.finish()
            self._sweep()
            staging = self._staging / _key(model)
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True, exist_ok=True)
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def publish(self, model: PackagedModel, staged: Path) -> Path:
        """Move a staged file to where ``find`` looks; needs ``writing``."""
        folder = self.folder(model)
        complete = staged.parent / "complete"
        complete.mkdir()
        staged.rename(complete / staged.name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        complete.rename(folder)
        return folder / staged.name

    def remove(self, model: PackagedModel) -> None:
        """Delete the model's folder. Raises ``ConfigError`` if it may not, or while another process is fetching it."""
        with self._explained("changed"), self._open_lock(_key(model)) as lock:
            if not _try_lock(lock):
                raise ConfigError(f"{model.reference} is being fetched by another process; try again later", "model")
            folder = self.folder(model)
            doomed = self._staging / _key(model)
            doomed.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(doomed, ignore_errors=True)
            folder.rename(doomed)  # at once for everybody; a server that runs from it keeps its mapping
            shutil.rmtree(doomed)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the model cache {self.root} cannot be {done}: {error.strerror or error}; give this user access to "
                f"it, or set {CACHE_VARIABLE} to another folder",
                CACHE_VARIABLE,
            ) from error

    def _open_lock(self, key: str) -> TextIO:
        # Lock files are never deleted: two processes could then hold locks on two files of one name.
        self._locks.mkdir(parents=True, exist_ok=True)
        return (self._locks / f"{key}.lock").open("w")

    def _sweep(self) -> None:
        """Delete staging folders whose owner is dead, so that nobody holds their lock."""
        for folder in self._staging.glob("*"):
            with self._open_lock(folder.name) as lock:
                if _try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)


def _key(model: PackagedModel) -> str:
    return model.reference.partition(":")[2]


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
