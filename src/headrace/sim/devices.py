"""What devices can do: memory, bandwidth, arithmetic and how long they take to add up over their links.

Owns the table of devices and the reading of ``h100x8``. It knows no model and no step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion

MAX_DEVICES = 8


@dataclass(frozen=True, slots=True)
class Link:
    """Measured seconds of one all-reduce of bfloat16 elements over two, four and eight devices.

    Between two sizes the time is interpolated, above the last it grows in proportion.
    """

    num_elements: tuple[int, ...]
    seconds: dict[int, tuple[float, ...]]

    def all_reduce_s(self, num_devices: int, num_elements: float) -> float:
        if num_devices == 1:
            return 0.0
        times = self.seconds[num_devices]
        largest = self.num_elements[-1]
        if num_elements > largest:
            return times[-1] * num_elements / largest
        return float(np.interp(num_elements, self.num_elements, times))


_SIZES = (8_192, 131_072, 524_288, 4_194_304, 16_777_216)


def _microseconds(*values: float) -> tuple[float, ...]:
    return tuple(value * 1e-6 for value in values)


NVLINK = Link(
    _SIZES,
    {
        2: _microseconds(4.5, 5.2, 8.3, 45, 156),
        4: _microseconds(4.8, 7.2, 12.8, 53.5, 191),
        8: _microseconds(5.3, 10.8, 15.0, 50.7, 178),
    },
)
PCIE5 = Link(
    _SIZES,
    {
        2: _microseconds(5.1, 11.1, 30.1, 245, 933),
        4: _microseconds(14.9, 43.2, 87.7, 462, 1777),
        8: _microseconds(27.5, 84.3, 134, 673, 2547),
    },
)
PCIE4 = Link(
    _SIZES,
    {
        2: _microseconds(7.5, 30.7, 74.8, 429, 1689),
        4: _microseconds(16.1, 110, 268, 2459, 9837),
        8: _microseconds(41.7, 426, 863, 9988, 38854),
    },
)


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """``num_devices`` of one kind serving one replica by tensor parallelism. Bytes, seconds, bfloat16 FLOP/s."""

    name: str
    flops: float
    memory_bytes: float
    bytes_per_s: float
    link: Link
    num_devices: int = 1


_KINDS = (
    DeviceShape("h100", 989e12, 80e9, 3.35e12, NVLINK),
    DeviceShape("h200", 989e12, 141e9, 4.8e12, NVLINK),
    DeviceShape("a100", 312e12, 80e9, 2.039e12, NVLINK),
    DeviceShape("b200", 2250e12, 180e9, 7.7e12, NVLINK),
    DeviceShape("l40s", 362e12, 45e9, 0.864e12, PCIE4),
    DeviceShape("rtxpro6000", 500e12, 96e9, 1.597e12, PCIE5),
    DeviceShape("rtx4090", 165e12, 24e9, 1.008e12, PCIE4),
)
DEVICE_KINDS: dict[str, DeviceShape] = {kind.name: kind for kind in _KINDS}
"""Dense figures of the vendors' sheets; all-reduce times as NVIDIA's AIConfigurator publishes them."""


def parse_device(text: str) -> DeviceShape:
    """``h100x8`` as eight H100 side by side, ``h100`` as one. Raises ``ConfigError``."""
    match = re.fullmatch(r"([a-z0-9]+?)(?:x([0-9]{1,3}))?", text.lower())
    kind = DEVICE_KINDS.get(match[1]) if match else None
    if match is None or kind is None:
        known = sorted(DEVICE_KINDS)
        raise ConfigError(
            f"there is no device {text!r}{suggestion(text, known)}; give one of {', '.join(known)}, several as "
            "h100x8, or cpu:PROFILE.json",
            "device",
        )
    num_devices = int(match[2] or 1)
    if num_devices not in (1, *NVLINK.seconds):
        raise ConfigError(f"device {text!r}: {num_devices} side by side are not known; give 1, 2, 4 or 8", "device")
    return DeviceShape(kind.name, kind.flops, kind.memory_bytes, kind.bytes_per_s, kind.link, num_devices)
