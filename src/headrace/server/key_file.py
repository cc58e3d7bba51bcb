"""API keys in a file of the operator's: one on each line, replaced while the server runs."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import ConfigError

MAX_KEY_FILE_BYTES = 1 << 20


def read_key_file(path: str | None) -> tuple[str, ...]:
    """The keys in the file; lines that are empty or begin with ``#`` are none. Without a file there are no keys.

    Raises ``ConfigError`` for a file that cannot be read, is no text, or has no key: a server that was to ask for
    keys must not come to ask for none.
    """
    if path is None:
        return ()
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}", "api_key_file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} is not UTF-8 text", "api_key_file") from None
    if len(data) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"the key file {path} has more than {MAX_KEY_FILE_BYTES} bytes", "api_key_file")
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"the key file {path} has no key; write one on each line", "api_key_file")
    return keys
