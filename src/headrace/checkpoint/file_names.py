"""The names files go by, and how to show a name that a stranger chose."""

from __future__ import annotations

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def shown(text: str) -> str:
    """Text out of a file, short and without control characters, fit for a terminal."""
    return repr(text if len(text) <= 120 else text[:120] + "...")[1:-1]
