"""Writes ``requirements.lock``: one version and one digest for what CI installs, but torch. ``python -m tests.lock``.

pip chooses, within ``constraints.txt``, and says what it has chosen; nothing is installed. The lock is for the machine
that CI runs on (CPython 3.11, Linux, x86-64); with another pair the digests of compiled packages differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("torch", "test")
_HEAD = """\
# What CI installs but torch, with the digest of what is downloaded. Written by `make lock`; for CPython 3.11 on Linux
# x86-64. `pip install --require-hashes -r requirements.lock` takes these files or none.
"""
MANY_BUILDS = "torch"
"""One version has a build for each kind of accelerator, and indexes differ in which they give: ``constraints.txt`` pins
the version, nothing the digest. What it needs is in the lock."""


def declared() -> list[str]:
    """What ``pyproject.toml`` asks for: to build, to run and to test."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    extras = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    return [*document["build-system"]["requires"], *project["dependencies"], *extras]


def chosen() -> list[dict[str, Any]]:
    """pip's report of what it would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed", "--dry-run", "--report", "-"]
    command += ["-c", str(ROOT / "constraints.txt"), *declared()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return list(report["install"])


def entries(installs: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of the lock, by name."""
    for each in sorted(installs, key=lambda each: str(each["metadata"]["name"]).lower()):
        name = each["metadata"]["name"].lower()
        if name != MANY_BUILDS:
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            yield f"{name}=={each['metadata']['version']} \\\n    --hash=sha256:{digest}\n"


def main() -> int:
    LOCK.write_text(_HEAD + "".join(entries(chosen())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
