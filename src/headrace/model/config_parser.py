"""From a checkpoint's metadata to ``ModelConfig``, whatever the file format."""

from __future__ import annotations

from headrace.core.errors import ConfigError
from headrace.core.model_config import ModelConfig
from headrace.model.gguf_config import parse_gguf_config
from headrace.model.hf_config import parse_hf_config
from headrace.model.source import CheckpointSource


def parse_model_config(checkpoint: CheckpointSource) -> ModelConfig:
    """The checkpoint's facts, checked; reads metadata and tensor names, no tensor data.

    Raises ``ConfigError`` naming the key in the file that is wrong, missing or not supported.
    """
    match checkpoint.format:
        case "safetensors":
            return parse_hf_config(checkpoint.metadata, checkpoint.generation_config, checkpoint.tensors)
        case "gguf":
            return parse_gguf_config(checkpoint.metadata, checkpoint.tensors)
        case other:
            raise ConfigError(f"the checkpoint format is {other!r}; supported are safetensors and gguf", "format")
