"""What is measured: workloads as plain data, and what a contender must answer about one."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

Values = Mapping[str, float]
"""Measured values by metric name; the names are those of ``METRICS``, and ``INFO`` for facts beside them."""


class Kind(enum.Enum):
    """What a scenario makes a contender do."""

    DECODE = "decode"
    """One sequence that has ``depth`` tokens of context gets ``output`` more, one step each."""
    PREFILL = "prefill"
    """One prompt of ``prompt`` tokens up to its first token."""
    BATCH = "batch"
    """``sequences`` prompts at once, ``output`` tokens each; the prompts' time counts."""
    STREAMS = "streams"
    """The same over HTTP, one stream per request."""
    CHAT = "chat"
    """``sequences`` conversations of ``turns`` turns at once, behind one system prompt of ``prompt`` tokens."""
    START = "start"
    """From the command to the first 200 of the readiness probe."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload; all counts in tokens, but ``sequences`` and ``turns``."""

    name: str
    title: str
    kind: Kind
    prompt: int = 1
    output: int = 1
    sequences: int = 1
    depth: int = 0
    turns: int = 1

    @property
    def is_http(self) -> bool:
        return self.kind in (Kind.STREAMS, Kind.CHAT, Kind.START)

    def smaller(self) -> Scenario:
        """The same with an eighth of the tokens and sequences: enough to see that everything works."""
        return replace(
            self,
            prompt=max(1, self.prompt // 8),
            output=max(2, self.output // 8),
            sequences=max(1, self.sequences // 8),
            depth=self.depth // 8,
            turns=min(2, self.turns),
        )


SCENARIOS = (
    Scenario("decode", "decode, 1 sequence, 128 tokens", Kind.DECODE, output=128),
    Scenario("prefill-512", "prefill, 512 tokens", Kind.PREFILL, prompt=512),
    Scenario("prefill-2048", "prefill, 2048 tokens", Kind.PREFILL, prompt=2048),
    Scenario("context-1400", "decode at context 1400", Kind.DECODE, output=64, depth=1400),
    Scenario("batch-64", "64 sequences, 128 in, 64 out", Kind.BATCH, prompt=128, output=64, sequences=64),
    Scenario("streams-64", "HTTP, 64 streams, 128 in, 64 out", Kind.STREAMS, prompt=128, output=64, sequences=64),
    Scenario("chat-8x4", "HTTP, 8 chats x 4 turns", Kind.CHAT, prompt=1000, output=64, sequences=8, turns=4),
    Scenario("start", "start to ready", Kind.START),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """How one value is shown and compared; a ratio above 1 always means that headrace is better."""

    name: str
    label: str
    more_is_better: bool


METRICS = {
    Kind.DECODE: (Metric("tokens_per_s", "tok/s", True),),
    Kind.PREFILL: (Metric("tokens_per_s", "tok/s", True),),
    Kind.BATCH: (Metric("tokens_per_s", "output tok/s", True),),
    Kind.STREAMS: (
        Metric("tokens_per_s", "output tok/s", True),
        Metric("ttft_p50_s", "TTFT p50, s", False),
        Metric("tpot_p50_s", "TPOT p50, s", False),
    ),
    Kind.CHAT: (Metric("wall_s", "wall, s", False), Metric("first_ttft_p50_s", "turn 1 TTFT p50, s", False)),
    Kind.START: (Metric("ready_s", "s", False),),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What all contenders share."""

    model: Path
    threads: int


class Contender(Protocol):
    """Somebody to measure. ``measure`` starts whatever it needs and leaves nothing running."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def takes_part(self, kind: Kind) -> bool: ...

    def measure(self, scenario: Scenario, setup: Setup) -> Values:
        """Run once. Raises ``MeasurementError`` when there is no result."""
        ...


class MeasurementError(Exception):
    """A contender gave no result, and why."""
