"""Runs lives one after another and collects what went wrong in them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.engine.metrics import Metrics
from tests.simulation.world import World


@dataclass(frozen=True)
class FailedLife:
    """A seed whose life broke a rule; running it again breaks it again."""

    seed: int
    error: str
    history: list[str]


@dataclass
class LivesReport:
    """All lives of a run. ``totals`` counts requests, deaths and how requests ended."""

    num_lives: int = 0
    failures: list[FailedLife] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)

    def add(self, other: LivesReport) -> None:
        self.num_lives += other.num_lives
        self.failures += other.failures
        self.totals += other.totals


def run_lives(seeds: Iterable[int]) -> LivesReport:
    """Run each seed's life on one event loop."""
    report = LivesReport()
    asyncio.run(_run_all(seeds, report))
    return report


async def _run_all(seeds: Iterable[int], report: LivesReport) -> None:
    metrics = Metrics("simulated")
    for seed in seeds:
        world = World(seed, metrics)
        try:
            await world.live()
        except Exception as error:
            report.failures.append(FailedLife(seed, f"{type(error).__name__}: {error}", world.history))
            for reader in list(world.readers.values()):
                reader.cancel()
            await asyncio.sleep(0)
        report.num_lives += 1
        report.totals += Counter(requests=len(world.clients), deaths=world.num_deaths)
        report.totals += Counter(type(client.error).__name__ for client in world.clients if client.error is not None)
