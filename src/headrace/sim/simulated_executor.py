"""An executor that computes nothing: a step takes what its ``StepTime`` says, and answers end as scripted.

Owns the script, which no policy can see: how long an answer becomes shows only when its end-of-sequence
token comes, as in reality. It does not know the scheduler or the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.clock import VirtualClock
from headrace.core.sequence import Sequence
from headrace.core.step import PendingMask, SampleSpec, StepPlan, StepResult, TransferKind
from headrace.scheduler.cost_model import StepFeatures
from headrace.sim.step_time import StepTime

EOS_TOKEN_ID = 0


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """How many tokens an answer has, the end-of-sequence token included, and what the others are."""

    num_tokens: int
    token_id: int


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """Memory for so many KV blocks, and how long a step and the copy of a block take."""

    num_blocks: int
    step_time: StepTime
    block_transfer_s: float = 0.0


class SimulatedExecutor:
    """Implements ``core.step.Executor`` by moving a virtual clock.

    ``script`` holds answers by the seed of their sequence, so that, as with a real model, a token depends on the
    sequence and its position and on nothing else.
    """

    def __init__(self, device: SimulatedDevice, clock: VirtualClock, script: dict[int, ScriptedAnswer]) -> None:
        self._device = device
        self._clock = clock
        self._script = script
        self.last_features = StepFeatures(0, 0, 0, 0)
        self.busy_s = 0.0

    @property
    def num_blocks(self) -> int:
        return self._device.num_blocks

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        self.last_features = StepFeatures.of(plan)
        transfer_s = self._device.block_transfer_s * _num_between_tiers(plan)
        elapsed_s = transfer_s + (self._step_s(plan.num_samples) if plan.scheduled else 0.0)
        self._let_pass(elapsed_s)
        tokens = [self._token(item.sample) for item in plan.scheduled if item.sample is not None]
        return StepResult(tokens, elapsed_s, transfer_s=transfer_s)

    def repeat_decodes(self) -> None:
        """Take the time of the last step again, one token later; it must have been of decodes only."""
        last = self.last_features
        assert last.num_new_tokens == 0
        self.last_features = StepFeatures(last.num_decodes, last.decode_context + last.num_decodes, 0, 0)
        self._let_pass(self._step_s(last.num_decodes))

    def num_tokens_before_last(self, seq: Sequence) -> int:
        """How many tokens are still to come of a sequence before its last one."""
        return self._script[seq.seed].num_tokens - seq.num_output_tokens - 1

    def inner_token(self, seq: Sequence) -> int:
        """What every token of an answer is but the last."""
        return self._script[seq.seed].token_id

    def _step_s(self, num_samples: int) -> float:
        return self._device.step_time.step_s(self.last_features, num_samples)

    def _let_pass(self, seconds: float) -> None:
        self._clock.advance(seconds)
        self.busy_s += seconds

    def _token(self, sample: SampleSpec) -> int:
        answer = self._script[sample.seed]
        num_before = sample.position - sample.num_prompt_tokens
        return EOS_TOKEN_ID if num_before >= answer.num_tokens - 1 else answer.token_id

    def close(self) -> None:
        """Nothing to do."""


def _num_between_tiers(plan: StepPlan) -> int:
    """Transfers that take the host's link; a copy within the device is lost in the time of a step."""
    return sum(transfer.kind is not TransferKind.COPY for transfer in plan.transfers)
