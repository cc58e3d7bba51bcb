"""A machine's measured step times on file, and the step time they make.

Owns the file and how a step between the measured sizes is read off it. How the times are measured is
``calibration``'s business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from headrace.core.errors import ConfigError
from headrace.scheduler.cost_model import StepFeatures

CPU_PREFIX = "cpu:"
SCHEMA = 1

_Size = Annotated[int, Meta(ge=0, le=1 << 24)]
_Count = Annotated[int, Meta(ge=1, le=1 << 40)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]


class Curve(msgspec.Struct, frozen=True):
    """Seconds over a size, measured at rising sizes; straight between them, on along the last piece above."""

    sizes: Annotated[tuple[_Size, ...], Meta(min_length=2)]
    seconds: Annotated[tuple[_Seconds, ...], Meta(min_length=2)]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds) or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("a curve has rising sizes and as many seconds")

    def at(self, size: float) -> float:
        if size <= self.sizes[-1]:
            return float(np.interp(size, self.sizes, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return self.seconds[-1] + slope * (size - self.sizes[-1])


class CpuProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one model's steps take on one machine, everything the engine does in a step included.

    ``tokens`` is a step that computes so many prompt tokens and samples none, ``samples`` what sampling so many
    adds. ``context_s`` is added for each earlier token that a decode attends to, ``pair_s`` for each such pair in a
    longer chunk. ``request_s`` is what the engine spends on a request besides its steps: taking it in and ending it.
    """

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA
    model: str
    machine: str
    num_kv_tokens: _Count
    max_model_len: _Count
    max_num_seqs: _Count
    max_num_batched_tokens: _Count
    tokens: Curve
    samples: Curve
    context_s: _Seconds
    pair_s: _Seconds
    request_s: _Seconds = 0.0


class ProfiledStepTime:
    """Implements ``StepTime`` from a profile; times of sizes seen before are remembered."""

    def __init__(self, profile: CpuProfile) -> None:
        self._profile = profile
        self._sized_s: dict[tuple[int, int], float] = {}

    def step_s(self, features: StepFeatures, num_samples: int) -> float:
        profile = self._profile
        key = (features.num_tokens, num_samples)
        sized_s = self._sized_s.get(key)
        if sized_s is None:
            sized_s = self._sized_s[key] = profile.tokens.at(key[0]) + profile.samples.at(key[1])
        return sized_s + profile.context_s * features.decode_context + profile.pair_s * features.chunk_context


def read_profile(path: Path) -> CpuProfile:
    """Raises ``ConfigError`` for a file that is missing or is no profile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CpuProfile)
    except OSError as error:
        raise ConfigError(
            f"cannot read the profile {path}: {error.strerror}; headrace simulate calibrate MODEL -o {path} makes one",
            "device",
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} is not a profile: {error}; headrace simulate calibrate makes one", "device"
        ) from error


def write_profile(profile: CpuProfile, path: Path) -> None:
    """Raises ``ConfigError`` for a file that cannot be written."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; -o names a file", "output") from error
