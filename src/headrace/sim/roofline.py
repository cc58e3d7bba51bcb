"""Step times of a model on a device from their published figures: bandwidth, arithmetic, links, overheads.

Owns the formula and its few fitted factors, and how many tokens of KV cache the device has room for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.errors import ConfigError
from headrace.core.units import format_bytes
from headrace.scheduler.cost_model import StepFeatures
from headrace.sim.devices import DeviceShape
from headrace.sim.model_shapes import ModelShape

MEMORY_SHARE = 0.9
"""Part of the device's memory a server takes; vLLM's ``gpu_memory_utilization``."""

RESERVED_BYTES = 3e9
"""Per device, for activations, communication buffers and the runtime."""


@dataclass(frozen=True, slots=True)
class RooflineFactors:
    """What reality takes of the ideal.

    Weight reads and all-reduces take these multiples of their ideal times, keys and values likewise, and every
    layer costs a little of its own; arithmetic gets a share of the peak. The defaults fit 27 published
    times per output token of vLLM on H100 (7 dense models over 1, 2 and 4 devices) with 4.4 % mean error.
    """

    weights: float = 1.0
    keys_and_values: float = 2.2
    all_reduce: float = 1.1
    layer_s: float = 60e-6
    flops_share: float = 0.5


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """``max(weights, arithmetic) + keys and values + all-reduces + layers + attention``.

    After the roofline model of Williams, Waterman and Patterson (CACM 2009): a step takes the longer of reading
    the weights and computing with them; what does not overlap with either is added.
    """

    model: ModelShape
    device: DeviceShape
    factors: RooflineFactors = RooflineFactors()
    _token_times_s: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def step_s(self, features: StepFeatures, num_samples: int) -> float:
        num_tokens = features.num_tokens
        token_time_s = self._token_times_s.get(num_tokens)
        if token_time_s is None:
            token_time_s = self._token_times_s[num_tokens] = self._token_time_s(num_tokens)
        context_s = self._context_s() * features.decode_context
        return token_time_s + context_s + self._attention_s() * features.chunk_context

    def _token_time_s(self, num_tokens: int) -> float:
        """What depends on the number of tokens alone."""
        model, device, factors = self.model, self.device, self.factors
        weights_s = factors.weights * model.step_weight_bytes / self._bandwidth()
        arithmetic_s = 2.0 * model.num_active_parameters * num_tokens / self._flops()
        reduce_s = device.link.all_reduce_s(device.num_devices, num_tokens * model.hidden_size)
        reduces_s = factors.all_reduce * 2 * model.num_layers * reduce_s
        return max(weights_s, arithmetic_s) + reduces_s + factors.layer_s * model.num_layers

    def _context_s(self) -> float:
        return self.factors.keys_and_values * self.model.kv_bytes_per_token / self._bandwidth()

    def _attention_s(self) -> float:
        model = self.model
        return 4.0 * model.num_layers * model.num_heads * model.head_dim / self._flops()

    def _bandwidth(self) -> float:
        return self.device.num_devices * self.device.bytes_per_s

    def _flops(self) -> float:
        return self.device.num_devices * self.device.flops * self.factors.flops_share


def num_kv_tokens(model: ModelShape, device: DeviceShape) -> int:
    """Tokens whose keys and values fit beside the weights. Raises ``ConfigError`` if there is no room for any."""
    room = device.num_devices * (MEMORY_SHARE * device.memory_bytes - RESERVED_BYTES) - model.weight_bytes
    if room < model.kv_bytes_per_token:
        raise ConfigError(
            f"{model.name} needs {format_bytes(model.weight_bytes)} for its weights, which leaves no room for a KV "
            f"cache on {device.num_devices} x {device.name}; take more devices, as in {device.name}x8",
            "device",
        )
    return int(room / model.kv_bytes_per_token)
