"""The result of a verb as JSON, where ``--json FILE`` asks for it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from headrace.core.errors import ConfigError

JSON_FLAG_HELP = "also write the result as JSON; - writes only that to stdout"


def write_json(result: object, target: str) -> None:
    """Write ``result`` to a file, or to stdout for ``-``. Raises ``ConfigError`` for a file that cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}; --json names a file") from error
