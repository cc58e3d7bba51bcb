"""Drives a real scheduler and KV cache with a ``ContentExecutor``, checking every invariant each step."""

from __future__ import annotations

from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.tiers import BlockTiers
from headrace.core.request import FinishReason, Request
from headrace.core.sequence import Sequence
from headrace.core.step import StepPlan
from headrace.scheduler.build import BatchLimits, PolicyName, build_scheduler
from headrace.scheduler.cost_model import StepCostModel, StepCosts
from headrace.scheduler.preemption import SwapChoice
from headrace.scheduler.scheduler import SequenceUpdate
from tests.fakes import ContentExecutor, ManualClock

EOS = frozenset({0})


class Harness:
    """One scheduler over one fake executor; ``step`` raises AssertionError on any broken invariant."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 16,
        max_model_len: int = 128,
        policy: PolicyName = "fcfs",
        prefix_caching: bool = True,
        costs: StepCosts | None = None,
        tiers: BlockTiers | None = None,
        swap_choice: SwapChoice | None = None,
    ) -> None:
        tiers = BlockTiers() if tiers is None else tiers
        self.budget = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=prefix_caching, tiers=tiers)
        limits = BatchLimits(max_num_seqs, max_num_batched_tokens, max_model_len)
        self.scheduler = build_scheduler(policy, self.kv, limits, StepCostModel(costs), swap_choice=swap_choice)
        self.executor = ContentExecutor(
            num_blocks, block_size, num_host_blocks=tiers.host.num_slots, num_disk_blocks=tiers.disk.num_slots
        )
        self.clock = ManualClock()
        self.sequences: list[Sequence] = []
        self.ended: dict[int, FinishReason] = {}
        self.failing_steps: set[int] = set()

    def add(self, request: Request, index: int = 0) -> Sequence:
        seq = Sequence(len(self.sequences), request, index, EOS)
        self.sequences.append(seq)
        self.scheduler.add(seq)
        return seq

    def abort(self, seq: Sequence) -> None:
        if not seq.is_finished:
            self.scheduler.finish(seq, FinishReason.ABORT)
            self._note_end(seq)

    def step(self) -> tuple[StepPlan, list[SequenceUpdate]]:
        for seq, _ in self.scheduler.end_overdue(self.clock.now()):
            self._note_end(seq)
        had_work = self.scheduler.has_work
        plan = self.scheduler.schedule(self.clock.now())
        assert plan.is_empty != had_work, "work but no progress, or progress from nothing"
        assert plan.num_tokens <= self.budget
        assert len(plan.scheduled) <= self.max_num_seqs
        assert len({item.seq_id for item in plan.scheduled}) == len(plan.scheduled)
        updates = self._outcome(plan)
        for update in updates:
            if update.seq.is_finished:
                self._note_end(update.seq)
        assert self.kv.check() == []
        return plan, updates

    def _outcome(self, plan: StepPlan) -> list[SequenceUpdate]:
        if plan.step_id in self.failing_steps:
            return self.scheduler.fail_step(plan, "the step failed")
        result = self.executor.execute(plan, None)
        self.clock.advance(result.elapsed_s)
        return self.scheduler.update(plan, result, self.clock.now())

    def run(self, max_steps: int = 10_000) -> int:
        """Step until idle and return how many steps it took."""
        for count in range(max_steps):
            if not self.scheduler.has_work:
                return count
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps: {self.sequences}")

    def _note_end(self, seq: Sequence) -> None:
        assert seq.seq_id not in self.ended, f"{seq} ended twice"
        assert seq.finish_reason is not None
        self.ended[seq.seq_id] = seq.finish_reason
