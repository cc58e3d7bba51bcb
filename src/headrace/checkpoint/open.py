"""Picks the reader for a path by what is there."""

from __future__ import annotations

from pathlib import Path

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.checkpoint.gguf import open_gguf
from headrace.checkpoint.locate import locate_weights
from headrace.checkpoint.safetensors import open_safetensors
from headrace.core.compiled_files import is_compiled
from headrace.core.errors import ConfigError


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a ``.gguf`` file, a ``.safetensors`` file or a folder of either; raises ``ConfigError``."""
    weights = locate_weights(path)
    if is_compiled(weights):
        raise ConfigError(f"{path} is a compiled model and has no stored tensors; give what it was made from", "model")
    return open_gguf(weights) if weights.suffix.lower() == ".gguf" else open_safetensors(weights)
