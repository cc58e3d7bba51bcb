"""What is learned while a scheduler runs, whatever its policy: what steps and copies cost, who is served, who waits."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan, StepResult
from headrace.scheduler.cost_model import StepCostModel, StepFeatures
from headrace.scheduler.fairness import ServiceCounters
from headrace.scheduler.free_sequences import FreeSequences
from headrace.scheduler.policy import SchedulerListener
from headrace.scheduler.transfer_costs import TransferCosts
from headrace.scheduler.wait_meter import WaitMeter
from headrace.scheduler.waits import Waits


class SchedulingMeters(SchedulerListener):
    """Keeps the cost models, the service counters and the reasons for waiting up to date."""

    def __init__(self, costs: StepCostModel | None = None) -> None:
        self.costs = StepCostModel() if costs is None else costs
        self.free = FreeSequences()
        self.transfers = TransferCosts()
        self.counters = ServiceCounters()
        self.waits = WaitMeter()
        self.last_step = StepFeatures(0, 0, 0, 0)

    @property
    def num_free_seqs(self) -> int:
        """How many sequences decode together in about the time of one; 0 while step times are not known."""
        return self.free.count(self.costs.costs) if self.costs.is_known else 0

    def on_queued(self, seq: Sequence) -> None:
        self.counters.enter(seq)

    def on_admitted(self, seq: Sequence, now: float) -> None:
        if seq.num_preemptions == 0:  # computing again after a preemption is not the tenant's doing
            self.counters.charge_admission(seq)

    def on_planned(self, plan: StepPlan, waits: Waits, now: float) -> None:
        self.waits.note_plan(waits, now)

    def on_step(self, plan: StepPlan, result: StepResult, running: Mapping[int, Sequence], now: float) -> None:
        self.last_step = StepFeatures.of(plan)
        self.costs.observe(self.last_step, result.elapsed_s - result.transfer_s)
        self.free.observe(self.last_step, result)
        self.transfers.observe(plan, result)
        self.counters.charge_step(plan, running)
        self.counters.refresh(now)
        self.waits.note_step(now)

    def on_finished(self, seq: Sequence) -> None:
        self.counters.leave(seq)
