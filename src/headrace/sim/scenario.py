"""A simulation as it is asked for: names and numbers resolved into a replica and its requests, and run.

Owns the spellings (``h100x8``, ``fcfs:512``, ``trace.jsonl,class=batch``) and what they mean. It prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion
from headrace.scheduler.build import BatchLimits
from headrace.sim.cpu_profile import CPU_PREFIX, ProfiledStepTime, read_profile
from headrace.sim.devices import parse_device
from headrace.sim.model_shapes import find_model
from headrace.sim.policies import POLICY_NAMES, SimulatedPolicy
from headrace.sim.report import SimulationReport, report_of
from headrace.sim.roofline import RooflineStepTime, num_kv_tokens
from headrace.sim.simulator import Replica, Simulator
from headrace.sim.step_time import StepTime, costs_of
from headrace.sim.workload import TraceSource, offered_requests

BATCHED_TOKENS: dict[SimulatedPolicy, int] = {"vllm": 2048, "slo": 4096, "fcfs": 2048, "priority": 2048}
"""Most tokens of a step where neither the policy nor the device says so."""

BLOCK_SIZE = 16

_SOURCE_KEYS = ("class", "share", "jitter", "cut", "steady")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy and the most tokens of its steps, if they were given; ``label`` is how it was asked for."""

    label: str
    name: SimulatedPolicy
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What serves: how long its steps take, what its KV cache holds, and the limits it is run with.

    ``request_s`` is what its engine spends on a request besides the steps.
    """

    step_time: StepTime
    num_kv_tokens: int
    max_model_len: int
    max_num_seqs: int = 1024
    max_num_batched_tokens: int | None = None
    request_s: float = 0.0

    def limited(self, num_kv_tokens: int | None, max_model_len: int | None, max_num_seqs: int | None) -> Hardware:
        """The same with other limits where they are given. Raises ``ConfigError`` for a cache without a block."""
        limited = replace(
            self,
            num_kv_tokens=num_kv_tokens or self.num_kv_tokens,
            max_model_len=max_model_len or self.max_model_len,
            max_num_seqs=max_num_seqs or self.max_num_seqs,
        )
        if limited.num_kv_tokens < BLOCK_SIZE:
            raise ConfigError(
                f"a KV cache of {limited.num_kv_tokens} tokens holds no block of {BLOCK_SIZE}; give more", "kv_tokens"
            )
        return limited

    @property
    def num_blocks(self) -> int:
        return self.num_kv_tokens // BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything a run depends on but its load and its policy."""

    sources: Sequence[TraceSource]
    hardware: Hardware
    duration_s: float = math.inf
    seed: int = 0
    enable_prefix_caching: bool = True

    def run(self, policy: PolicyChoice, load: float) -> SimulationReport:
        """Simulate one load under one policy. Equal scenarios give equal reports."""
        requests = offered_requests(self.sources, load, self.duration_s, self.seed)
        simulator = Simulator(requests, self._replica(policy))
        simulator.run()
        return report_of(simulator, policy.label, load, self.seed)

    def _replica(self, policy: PolicyChoice) -> Replica:
        hardware = self.hardware
        most = policy.max_num_batched_tokens or hardware.max_num_batched_tokens or BATCHED_TOKENS[policy.name]
        longest = min(hardware.max_model_len, hardware.num_blocks * BLOCK_SIZE)
        return Replica(
            policy=policy.name,
            step_time=hardware.step_time,
            known_costs=costs_of(hardware.step_time),
            num_blocks=hardware.num_blocks,
            block_size=BLOCK_SIZE,
            limits=BatchLimits(min(hardware.max_num_seqs, most), most, longest),
            request_s=hardware.request_s,
            enable_prefix_caching=self.enable_prefix_caching,
        )


def parse_policy(text: str) -> PolicyChoice:
    """``slo``, or ``fcfs:512`` with the most tokens of a step. Raises ``ConfigError``."""
    word, _, tokens = text.partition(":")
    for name in POLICY_NAMES:
        if name == word:
            return PolicyChoice(text, name, _int(tokens, f"policy {text}: tokens of a step", 1) if tokens else None)
    raise ConfigError(
        f"there is no policy {word!r}{suggestion(word, POLICY_NAMES)}; the policies are "
        f"{', '.join(POLICY_NAMES)}, each with the most tokens of a step as in fcfs:2048",
        "policy",
    )


def parse_hardware(model: str | None, device: str) -> Hardware:
    """A model on devices (``llama-70b``, ``h100x8``), or the machine that ``cpu:PROFILE.json`` was measured on.

    Raises ``ConfigError``.
    """
    if device.startswith(CPU_PREFIX):
        profile = read_profile(Path(device.removeprefix(CPU_PREFIX)))
        if model is not None:
            raise ConfigError(f"{device} was measured with {profile.model}; leave --model out", "model")
        return Hardware(
            step_time=ProfiledStepTime(profile),
            request_s=profile.request_s,
            num_kv_tokens=profile.num_kv_tokens,
            max_model_len=profile.max_model_len,
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
        )
    if model is None:
        raise ConfigError(f"device {device} needs a model to run; give --model, for example llama-70b", "model")
    shape, devices = find_model(model), parse_device(device)
    return Hardware(
        step_time=RooflineStepTime(shape, devices),
        num_kv_tokens=num_kv_tokens(shape, devices),
        max_model_len=shape.max_model_len,
    )


def parse_source(text: str) -> TraceSource:
    """``FILE[,class=NAME][,share=X][,jitter=SECONDS][,cut=TOKENS][,steady]``. Raises ``ConfigError``."""
    file, *words = text.split(",")
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in _SOURCE_KEYS or bool(equals) == (key == "steady"):
            raise ConfigError(
                f"trace option {word!r} is not known{suggestion(key, _SOURCE_KEYS)}; "
                "write FILE,class=NAME,share=X,jitter=SECONDS,cut=TOKENS,steady",
                "trace",
            )
        options[key] = value
    return TraceSource(
        Path(file),
        service_class=options.get("class", "interactive"),
        share=_float(options.get("share", "1"), "share", 0.0, 1.0),
        jitter_s=_float(options.get("jitter", "0"), "jitter", 0.0, 1e6),
        max_input_tokens=_int(options["cut"], "cut", 1) if "cut" in options else None,
        is_steady="steady" in options,
    )


def parse_loads(text: str) -> list[float]:
    """``0.5,1,2`` as numbers above 0. Raises ``ConfigError``."""
    return [_float(word, "load", 0.001, 1000.0) for word in text.split(",")]


def _float(text: str, what: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"{what} is {text!r} but must be a number from {low:g} to {high:g}")
    return value


def _int(text: str, what: str, low: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= 1 << 24:
        raise ConfigError(f"{what} is {text!r} but must be a whole number from {low} to {1 << 24}")
    return int(text)
