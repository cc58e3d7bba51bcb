"""``headrace version``: our version and those of what decides how it runs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

from headrace.cli.flags import Parser

PACKAGES = ("torch", "numpy", "tokenizers", "starlette", "uvicorn", "msgspec")


def main(argv: Sequence[str]) -> int:
    Parser("version", "Print the versions of headrace and of what it runs on.").parse(argv)
    rows = [("headrace", installed_version("headrace")), ("python", platform.python_version())]
    rows += [(name, installed_version(name)) for name in PACKAGES]
    width = max(len(name) for name, _ in rows)
    for name, version in rows:
        print(f"{name:<{width}}  {version or 'not installed'}")
    return 0


def installed_version(package: str) -> str | None:
    """Version from the package's metadata, without importing it; ``None`` when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
