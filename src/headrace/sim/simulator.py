"""The real engine on a virtual clock: requests come when they are due, steps take what they are said to take.

Owns the order of arrivals and steps, and the record of what became of each request. Scheduling, caching,
admission and the life of a sequence are the engine's own code; there is no second copy of any of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.cache.kv_cache import KVCacheManager
from headrace.cache.tiers import BlockTiers
from headrace.core.client import EngineInfo
from headrace.core.clock import VirtualClock
from headrace.core.errors import Overloaded
from headrace.core.sampling import SamplingParams
from headrace.engine.constraints import GrammarSource, NoGrammars
from headrace.engine.engine import Engine
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextStream
from headrace.scheduler.build import BatchLimits
from headrace.scheduler.cost_model import StepCostModel, StepCosts
from headrace.scheduler.policy import SchedulerListener
from headrace.sim.fast_forward import skip_decodes
from headrace.sim.policies import STEPWISE_POLICIES, SimulatedPolicy, build_simulated_scheduler
from headrace.sim.record import Outcome, RequestRecord
from headrace.sim.simulated_executor import EOS_TOKEN_ID, SimulatedDevice, SimulatedExecutor
from headrace.sim.step_time import StepTime
from headrace.sim.workload import OfferedRequest

NO_VOCABULARY = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine as it is simulated: its policy, how long its steps take, and its limits.

    ``known_costs`` are what the policy believes of step times when it starts; it goes on learning from the steps.
    ``request_s`` is what the engine spends on a request besides its steps, all of it when it is taken in.
    ``block_transfer_s`` is how long copying one block between the pool and the tiers below it holds a step up.
    """

    policy: SimulatedPolicy
    step_time: StepTime
    known_costs: StepCosts | None
    num_blocks: int
    block_size: int = 16
    limits: BatchLimits
    enable_prefix_caching: bool = True
    num_host_blocks: int = 0
    num_disk_blocks: int = 0
    block_transfer_s: float = 0.0
    request_s: float = 0.0


class _NoText:
    """Tokens have no text here."""

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class _NoTexts:
    grammars: GrammarSource = NoGrammars()

    def text_streams(self, sampling: SamplingParams) -> list[TextStream]:
        return [TextStream(_NoText(), StopStrings(())) for _ in range(sampling.n)]


class Simulator:
    """Plays requests, by arrival, to one engine. May be run once."""

    def __init__(
        self, requests: Sequence[OfferedRequest], replica: Replica, listeners: Sequence[SchedulerListener] = ()
    ) -> None:
        self._requests = requests
        self._max_model_len = replica.limits.max_model_len
        self._request_s = replica.request_s
        self._may_skip = replica.policy not in STEPWISE_POLICIES
        self.clock = VirtualClock()
        tiers = BlockTiers(replica.num_host_blocks, replica.num_disk_blocks)
        self.kv = KVCacheManager(replica.num_blocks, replica.block_size, replica.enable_prefix_caching, tiers)
        costs = StepCostModel(replica.known_costs)
        self.scheduler = build_simulated_scheduler(replica.policy, self.kv, replica.limits, costs, listeners)
        script = {request.index: request.answer for request in requests}
        device = SimulatedDevice(replica.num_blocks, replica.step_time, replica.block_transfer_s)
        self._executor = SimulatedExecutor(device, self.clock, script)
        info = _engine_info(replica)
        self.engine = Engine(self.scheduler, self.kv, self._executor, _NoTexts(), self.clock, info)
        self.records = [RequestRecord(request) for request in requests]
        self.num_steps = 0
        self._next = 0

    def run(self) -> None:
        """Play everything to its end."""
        while self.has_work:
            self.tick()
            self.skip()

    @property
    def has_work(self) -> bool:
        """Whether anything is still to come or to be finished."""
        return self._next < len(self._requests) or self.engine.has_work

    def tick(self) -> None:
        """Hand over what has come by now, then run a step; without work, let time pass until the next arrival."""
        if not self.engine.has_work:
            self.clock.advance_to(max(self.clock.now(), self.next_arrival_s))
        while self.next_arrival_s <= self.clock.now():
            self._submit(self.records[self._next])
            self._next += 1
        for output in self.engine.step():
            self.records[int(output.request_id)].take(output, self.clock.now())
        self.num_steps += 1

    def skip(self) -> None:
        """Take the steps at once that would repeat the last one."""
        running = self.scheduler.running
        if not self._may_skip or not running or self.scheduler.num_waiting > 0:
            return
        times = skip_decodes(running, self.kv, self._executor, self.clock, self.next_arrival_s)
        if not times:
            return
        longest_gap_s = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
        for seq in running:
            self.records[int(seq.request.request_id)].take_tokens(times, longest_gap_s)
        self.num_steps += len(times)

    @property
    def busy_s(self) -> float:
        """Seconds in which a step was running."""
        return self._executor.busy_s

    @property
    def next_arrival_s(self) -> float:
        """When the next request comes; infinite when none does."""
        return self._requests[self._next].arrival_s if self._next < len(self._requests) else math.inf

    def _submit(self, record: RequestRecord) -> None:
        trace = record.offered.trace
        if trace.num_input_tokens + trace.num_output_tokens > self._max_model_len:  # a server answers 400
            record.end(Outcome.TOO_LONG)
            return
        try:
            self.engine.submit(record.offered.request())
            record.is_admitted = True
            self.clock.advance(self._request_s)
        except Overloaded:
            record.end(Outcome.REJECTED)


def _engine_info(replica: Replica) -> EngineInfo:
    return EngineInfo(
        model="simulated",
        architecture="simulated",
        dtype="none",
        backend="simulated",
        num_parameters=0,
        vocab_size=NO_VOCABULARY,
        max_model_len=replica.limits.max_model_len,
        block_size=replica.block_size,
        num_blocks=replica.num_blocks,
        kv_cache_bytes=0,
        max_num_seqs=replica.limits.max_num_seqs,
        max_num_batched_tokens=replica.limits.max_num_batched_tokens,
        eos_token_ids=[EOS_TOKEN_ID],
    )
