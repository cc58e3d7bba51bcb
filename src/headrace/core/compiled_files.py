"""The names of the files in a folder that ``headrace compile`` writes."""

from __future__ import annotations

from pathlib import Path

MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.msgpack"
"""What the tokenizer and chat template are made from, read from the model's own files and settled."""
TOKENS_FILE = "tokens.msgpack"
"""The tokens as text, for an engine to start without the tokenizer; only where tokens are byte strings."""


def is_compiled(path: Path) -> bool:
    """Whether ``path`` is such a folder, as far as its files' names tell."""
    return (path / MANIFEST_FILE).is_file() and (path / WEIGHTS_FILE).is_file()
