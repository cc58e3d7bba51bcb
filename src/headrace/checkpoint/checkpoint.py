"""A model on disk, whatever its format: named tensors and the facts stored beside them.

Does not know what the tensors or the facts mean; that is ``model``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.checkpoint.tensor_view import TensorView

CheckpointFormat = Literal["gguf", "safetensors"]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """An opened model; its files stay mapped as long as a tensor of it is referenced.

    ``metadata`` is the key/value store of a GGUF file (text and numbers as Python values, arrays of text as
    lists, arrays of numbers as NumPy arrays) or the parsed ``config.json`` of a folder.
    ``generation_config`` is the parsed ``generation_config.json``, empty where there is none. Both are the
    file's words, unchecked beyond being well formed. ``path`` is the ``.gguf`` file, or the folder.
    """

    path: Path
    format: CheckpointFormat
    tensors: Mapping[str, TensorView]
    metadata: Mapping[str, object]
    generation_config: Mapping[str, object] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where tokenizer and template files would lie."""
        return self.path.parent if self.format == "gguf" else self.path

    @property
    def num_parameters(self) -> int:
        return sum(tensor.num_elements for tensor in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())
