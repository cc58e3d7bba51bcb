"""The parts of a transformer layer besides attention itself: norms, rotary positions, projections, feed-forward.

Each part holds its weights and is called with rows ``[T, ...]``; none knows which sequence a row is of.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, silu

from headrace.core.model_config import Activation
from headrace.core.rope import RopeConfig

Norm = Callable[[Tensor], Tensor]


class RmsNorm:
    """Root-mean-square norm over runs of ``len(weight)`` values (arXiv:1910.07467), computed in float32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, rows: Tensor) -> Tensor:
        """``rows`` ``[T, width]``, normed run by run; ``width`` is a multiple of ``len(weight)``."""
        runs = rows.float().view(len(rows), -1, len(self._weight))
        return rms_norm(runs, (len(self._weight),), self._weight, self._eps).to(rows.dtype).view(rows.shape)


def unchanged(rows: Tensor) -> Tensor:
    """The norm of a place where a model has none."""
    return rows


class Rotation:
    """The turn of every row's position, for heads of one ``RopeConfig`` (arXiv:2104.09864)."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._cos = cos  # [T, 1, rotary_dim / 2]
        self._sin = sin

    def __call__(self, heads: Tensor) -> Tensor:
        """``heads`` ``[T, num_heads, head_dim]`` with the first ``rotary_dim`` dimensions of each turned."""
        half = self._cos.shape[-1]
        first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        turned_first = first * self._cos - second * self._sin
        turned_second = second * self._cos + first * self._sin
        return torch.cat((turned_first.to(heads.dtype), turned_second.to(heads.dtype), rest), dim=-1)


class Rope:
    """Makes rotations of positions; ``factors`` divide the frequencies where the checkpoint brings some."""

    def __init__(self, config: RopeConfig, factors: Tensor | None, device: torch.device) -> None:
        frequencies = torch.from_numpy(config.inverse_frequencies()).to(device=device, dtype=torch.float32)
        self._frequencies = frequencies if factors is None else frequencies / factors  # [rotary_dim / 2]
        self._attention_factor = config.attention_factor

    def at(self, positions: Tensor) -> Rotation:
        angles = (positions[:, None] * self._frequencies)[:, None, :]  # [T, 1, rotary_dim / 2]
        return Rotation(angles.cos() * self._attention_factor, angles.sin() * self._attention_factor)


class FeedForward:
    """``down(activation(gate(x)) * up(x))`` (arXiv:2002.05202), gate and up in one product."""

    def __init__(self, gate_up: Tensor, down: Tensor, activation: Activation) -> None:
        self._gate_up = gate_up  # [2 * intermediate_size, hidden_size]
        self._down = down  # [hidden_size, intermediate_size]
        self._activate = _ACTIVATIONS[activation]

    def __call__(self, rows: Tensor) -> Tensor:
        gate, up = linear(rows, self._gate_up).chunk(2, dim=-1)  # [T, intermediate_size] each
        return linear(self._activate(gate) * up, self._down)


def _gelu_tanh(values: Tensor) -> Tensor:
    return gelu(values, approximate="tanh")


_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: silu,
    Activation.GELU_TANH: _gelu_tanh,
}
