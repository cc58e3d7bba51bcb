"""What a model costs to run, as a handful of counts: parameters, layers, width, bytes of keys and values.

Owns the table of well-known models and the reading of a name. It knows no weights and no device.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder's counts. ``num_active_parameters`` are read for each step: all but the embedding."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_parameters: float
    num_active_parameters: float
    max_model_len: int
    weight_dtype_bytes: float = 2.0

    @property
    def weight_bytes(self) -> float:
        return self.num_parameters * self.weight_dtype_bytes

    @property
    def step_weight_bytes(self) -> float:
        """Bytes of weights one step reads."""
        return self.num_active_parameters * self.weight_dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, in half precision."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 2


_BILLION = 1e9

MODEL_SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("llama-8b", 32, 4096, 32, 8, 128, 8.03 * _BILLION, 7.50 * _BILLION, 131_072),
        ModelShape("llama-70b", 80, 8192, 64, 8, 128, 70.55 * _BILLION, 69.50 * _BILLION, 131_072),
        ModelShape("llama-405b", 126, 16384, 128, 8, 128, 405.85 * _BILLION, 403.75 * _BILLION, 131_072),
        ModelShape("llama2-7b", 32, 4096, 32, 32, 128, 6.74 * _BILLION, 6.61 * _BILLION, 131_072),
        ModelShape("llama2-70b", 80, 8192, 64, 8, 128, 68.98 * _BILLION, 68.71 * _BILLION, 131_072),
        ModelShape("qwen2.5-7b", 28, 3584, 28, 4, 128, 7.62 * _BILLION, 7.07 * _BILLION, 131_072),
        ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 8.19 * _BILLION, 7.57 * _BILLION, 131_072),
        ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 32.76 * _BILLION, 31.98 * _BILLION, 131_072),
        ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 0.1345 * _BILLION, 0.1345 * _BILLION, 8192),
    )
}
"""By name. Counts of the published configurations; the context is at least that of the longest trace."""


def find_model(name: str) -> ModelShape:
    """Raises ``ConfigError`` naming the shapes there are."""
    shape = MODEL_SHAPES.get(name.lower())
    if shape is None:
        known = sorted(MODEL_SHAPES)
        raise ConfigError(
            f"there is no model shape {name!r}{suggestion(name, known)}; the shapes are {', '.join(known)}", "model"
        )
    return shape
