"""JSON files of a model folder, read with a bound on size; depth is bounded by the decoder itself."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.checkpoint.file_names import shown
from headrace.checkpoint.layout import FileChecks, map_file

# Decoded objects take up to some 25 times the bytes of their text, so this also bounds memory.
MAX_CONFIG_BYTES = 2 << 20

_T = TypeVar("_T")


def read_json_object(path: Path) -> dict[str, object]:
    """The object in ``path``, which may take ``MAX_CONFIG_BYTES``."""
    return read_json(path, dict[str, object], MAX_CONFIG_BYTES)


def read_json(path: Path, target: type[_T], max_bytes: int) -> _T:
    """Decode ``path`` into ``target``; raises ``ConfigError`` naming the file as the field."""
    data = map_file(path)
    checks = FileChecks(path)
    checks.in_range(f"{path.name} size in bytes", len(data), 1, max_bytes)
    try:
        return msgspec.json.decode(data.tobytes(), type=target)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise checks.error(path.name, f"cannot be understood: {shown(str(error))}") from error
    except RecursionError as error:
        raise checks.error(path.name, "is nested too deeply") from error
