"""The scheduling rule: which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase. A sequence has pending tokens, a step has a token budget, and
the budget is handed out to running and waiting sequences in the policy's order. Chunked prefill, prefix hits
and resumption after preemption are arithmetic on pending tokens.

The scheduler holds no clock, thread, tensor, randomness or I/O: ``now`` is an argument, and equal calls give
equal plans. What differs between policies is asked of ``SchedulingPolicy``; where keys and values live is the
business of ``KVCacheManager``.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import msgspec

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.errors import HeadraceError
from headrace.core.request import FinishReason, TokenLogprobs
from headrace.core.sequence import Sequence, SequenceStatus
from headrace.core.step import JoinedTokens, StepPlan, StepResult
from headrace.scheduler.chunks import num_matchable_tokens, owes_prompt_logprobs, scheduled_chunk, take_prompt_logprobs
from headrace.scheduler.deadlines import Deadlines
from headrace.scheduler.meters import SchedulingMeters
from headrace.scheduler.policy import NO_LIMIT, SchedulerListener, SchedulingPolicy
from headrace.scheduler.preemption import AlwaysRecompute, SwapChoice
from headrace.scheduler.waiting_queue import WaitingLine
from headrace.scheduler.waits import WaitReason, Waits

WATERMARK = 0.01
"""Share of the pool that must stay free when a sequence starts beside others."""

MAX_HELD_BACK = 64
"""Most waiting sequences passed over in one step because what they would compute can soon be had for less."""

MAX_FETCHED_AHEAD = 4
"""How many of those next in line have their blocks brought back from disk."""


class BatchLimits(msgspec.Struct, frozen=True):
    """Most sequences and tokens in a step, and most tokens in a sequence."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class SequenceUpdate(msgspec.Struct, frozen=True, gc=False):
    """What one step did to one sequence; ``error`` is set when it failed in the executor.

    ``token_id`` is the sampled token or ``None``; ``prompt_logprobs`` are the newly known prompt positions.
    """

    seq: Sequence
    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    error: str | None = None


class Scheduler:
    """Owns the waiting queue and the set of running sequences. One thread only.

    Every sequence given to ``add`` ends in exactly one way: FINISHED with a finish reason, set by
    ``update`` (token or length limits, executor failure) or by ``finish`` (the caller's reasons).
    """

    def __init__(
        self,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        limits: BatchLimits,
        meters: SchedulingMeters | None = None,
        listeners: SequenceOf[SchedulerListener] = (),
        swap_choice: SwapChoice | None = None,
    ) -> None:
        self._kv = kv
        self._policy = policy
        self._limits = limits
        self.meters = SchedulingMeters() if meters is None else meters
        self._listeners: list[SchedulerListener] = [self.meters, *listeners]
        self._swap_choice: SwapChoice = AlwaysRecompute() if swap_choice is None else swap_choice
        self._watermark_tokens = int(kv.num_blocks * WATERMARK) * kv.block_size
        self._waiting = policy.line
        self._deadlines = Deadlines()
        self._running: dict[int, Sequence] = {}
        self._blocked: tuple[Sequence, int] | None = None
        self._step_id = 0
        self.num_preemptions = 0

    @property
    def running(self) -> Collection[Sequence]:
        """The running sequences, to look at only; changes with each step."""
        return self._running.values()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running) or len(self._waiting) > 0

    def listen(self, listener: SchedulerListener) -> None:
        """Tell one more what happens from now on."""
        self._listeners.append(listener)

    def admit(self, seq: Sequence, now: float) -> None:
        """Ask whether the request of ``seq`` is taken in at all; raises ``Overloaded`` if not."""
        self._policy.admit(seq, now)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Its longest possible form must fit the pool: see ``max_num_tokens``."""
        seq.length_limit = max_num_tokens(seq, self._limits.max_model_len)
        assert self._kv.fits(seq.length_limit)
        for listener in self._listeners:
            listener.on_queued(seq)
        self._waiting.push(seq)
        self._deadlines.push(seq)

    def end_overdue(self, now: float) -> list[tuple[Sequence, HeadraceError]]:
        """End the sequences it is too late for and free what they hold; each with what to tell its caller."""
        ended = []
        for take in (self._deadlines.take_passed, self._waiting.take_overdue):  # a deadline may end a wait as well
            for seq, error in take(now):
                self.finish(seq, FinishReason.ERROR)
                ended.append((seq, error))
        return ended

    def finish(self, seq: Sequence, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        """End a sequence wherever it is and free what it holds; no effect on a finished one."""
        if seq.is_finished:
            return
        was_waiting = seq.status is SequenceStatus.WAITING
        seq.finish(reason, stop_reason)
        self._deadlines.discard(seq)
        if was_waiting:
            self._waiting.discard(seq)
        else:
            del self._running[seq.seq_id]
        self._kv.discard(seq)
        for listener in self._listeners:
            listener.on_finished(seq)

    # -- deciding a step ---------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. The plan is empty only when there is no work at all."""
        shape = self._policy.shape_step(self._running.values(), now)
        draft = _StepDraft(
            shape.token_budget, min(shape.max_starts, self._limits.max_num_seqs - len(self._running)), now
        )
        for seq in shape.first:
            self._continue(seq, draft)
        for urgency, seq in shape.rest:
            self._admit_waiting(draft, urgency)
            self._continue(seq, draft)
        self._admit_waiting(draft, NO_LIMIT)
        _fetch_ahead(self._waiting, self._kv, now)
        self._step_id += 1
        plan = draft.plan(self._step_id, self._kv)
        waits = draft.waits(len(self._waiting), self._limits.max_num_seqs - len(self._running))
        for listener in self._listeners:
            listener.on_planned(plan, waits, now)
        return plan

    def _continue(self, seq: Sequence, draft: _StepDraft) -> None:
        if draft.budget <= 0 or seq.status is not SequenceStatus.RUNNING:
            return  # the latter: preempted for one that came before it
        num_tokens = min(len(seq.token_ids) - seq.num_computed_tokens, draft.budget)
        if self._kv.extend(seq, num_tokens) or self._make_room(seq, num_tokens, draft):
            draft.give(seq, num_tokens)

    def _make_room(self, seq: Sequence, num_tokens: int, draft: _StepDraft) -> bool:
        """Get blocks for ``num_tokens`` more tokens, preempting others; False if ``seq`` gave way itself."""
        while not self._kv.extend(seq, num_tokens):
            victim = self._policy.victim(self._running.values(), draft.now)
            self._preempt(victim, seq, draft)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence, cause: Sequence, draft: _StepDraft) -> None:
        while followers := self._kv.joints.followers(seq):
            self._preempt(followers[-1], cause, draft)
        draft.take_back(seq)
        draft.preempted.append(seq)
        if self._swap_choice.prefers_swap(seq, self._kv.block_size):
            self._kv.swap_out(seq)  # or, without room in the host tier, not: then it is computed again
        self._kv.release(seq)
        del self._running[seq.seq_id]
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self._waiting.push(seq)
        self.num_preemptions += 1
        for listener in self._listeners:
            listener.on_preempted(seq, draft.now, cause)

    def _admit_waiting(self, draft: _StepDraft, urgency: float) -> None:
        """Start those that wait with more urgency, in order, while there is room; nobody after a preemption."""
        if draft.preempted or draft.is_full:
            return
        held_back: list[Sequence] = []
        while draft.budget > 0 and draft.max_starts > 0 and len(held_back) < MAX_HELD_BACK:
            seq = self._waiting.pop(urgency, draft.now)
            if seq is None:
                break
            reason = self._reason_to_hold(seq, draft)
            if reason is not None:
                held_back.append(seq)
                draft.held.append((seq, reason))
            elif self._is_still_blocked(seq) or not self._try_admit(seq, draft):
                held_back.append(seq)
                draft.is_full = True
                break  # nobody overtakes for lack of memory, or large requests would starve
        for seq in held_back:
            self._waiting.push(seq)

    def _try_admit(self, seq: Sequence, draft: _StepDraft) -> bool:
        self._kv.acquire(seq, num_matchable_tokens(seq), draft.chunks)
        num_tokens = min(seq.num_pending_tokens, draft.budget)
        if not (self._has_room(seq) and self._kv.extend(seq, num_tokens)):
            self._kv.release(seq)
            seq.num_computed_tokens = 0
            self._blocked = (seq, self._kv.num_available_blocks)
            return False
        if not seq.has_begun:
            seq.first_scheduled_time = draft.now
            seq.num_cached_tokens = seq.num_computed_tokens
        seq.status = SequenceStatus.RUNNING
        self._running[seq.seq_id] = seq
        for listener in self._listeners:
            listener.on_admitted(seq, draft.now)
        draft.max_starts -= 1
        draft.give(seq, num_tokens)
        return True

    def _has_room(self, seq: Sequence) -> bool:
        """Whether the pool has what the policy asks for and a margin: what must soon give way again is thrashing."""
        if not self._running:
            return True
        num_tokens = self._policy.num_tokens_to_start(seq, self._running.values())
        return self._kv.can_extend(seq, num_tokens + self._watermark_tokens)

    def _is_still_blocked(self, seq: Sequence) -> bool:
        """Whether ``seq`` failed for lack of blocks and none came free since; spares matching it each step."""
        if self._blocked is None or self._blocked[0] is not seq or not self._running:
            return False
        return self._kv.num_available_blocks <= self._blocked[1]

    def _reason_to_hold(self, seq: Sequence, draft: _StepDraft) -> WaitReason | None:
        """Why a waiting sequence should let others go first: what it would compute can soon be had for less."""
        num_matchable = num_matchable_tokens(seq)
        if self._kv.is_being_computed(seq, num_matchable, draft.chunks):
            return WaitReason.SHARED_PREFIX
        return WaitReason.DISK if self._kv.fetch(seq, num_matchable) else None

    # -- taking in what happened -------------------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceUpdate]:
        """Apply a step's outcome, in plan order: advance, append, commit, and end what is complete."""
        self._kv.settle(result.failed_transfers)
        for listener in self._listeners:
            listener.on_step(plan, result, self._running, now)
        sampled = iter(result.sampled_token_ids)
        updates = []
        for item in plan.scheduled:
            token_id = next(sampled) if item.sample is not None else None
            seq = self._running[item.seq_id]
            error = result.failed.get(item.seq_id)
            if error is not None:
                self.finish(seq, FinishReason.ERROR)
                updates.append(SequenceUpdate(seq, None, error=error))
                continue
            seq.num_computed_tokens = item.end
            self._kv.commit(seq)
            prompt_logprobs = take_prompt_logprobs(seq, item, result) if owes_prompt_logprobs(seq) else ()
            if token_id is not None:
                self._append(seq, token_id, now)
            if token_id is not None or prompt_logprobs:
                updates.append(SequenceUpdate(seq, token_id, result.logprobs.get(item.seq_id), prompt_logprobs))
        return updates

    def fail_step(self, plan: StepPlan, message: str) -> list[SequenceUpdate]:
        """End every sequence of a plan that the executor could not run."""
        for seq in self._kv.abandon():
            seq.num_cached_tokens = min(seq.num_cached_tokens, seq.num_computed_tokens)
        updates = []
        for item in plan.scheduled:
            seq = self._running[item.seq_id]
            self.finish(seq, FinishReason.ERROR)
            updates.append(SequenceUpdate(seq, None, error=message))
        return updates

    def _append(self, seq: Sequence, token_id: int, now: float) -> None:
        token_ids = seq.token_ids
        if len(token_ids) == seq.num_prompt_tokens:
            seq.first_token_time = now
        token_ids.append(token_id)
        sampling = seq.request.sampling
        if token_id in sampling.stop_token_ids:
            self.finish(seq, FinishReason.STOP, token_id)
        elif token_id in seq.eos_token_ids and not sampling.ignore_eos:
            self.finish(seq, FinishReason.STOP)
        elif len(token_ids) >= seq.length_limit:
            self.finish(seq, FinishReason.LENGTH)


class _StepDraft:
    """A step while it is being decided: the budget left and who got how much of it.

    ``max_starts`` more sequences may start. The step ``is_full`` when one could not for lack of KV blocks.
    """

    __slots__ = ("budget", "chunks", "held", "is_full", "max_starts", "now", "preempted")

    def __init__(self, budget: int, max_starts: int, now: float) -> None:
        self.budget = budget
        self.max_starts = max_starts
        self.now = now
        self.is_full = False
        self.chunks: dict[int, tuple[Sequence, int]] = {}
        self.preempted: list[Sequence] = []
        self.held: list[tuple[Sequence, WaitReason]] = []

    def give(self, seq: Sequence, num_tokens: int) -> None:
        self.chunks[seq.seq_id] = (seq, num_tokens)
        self.budget -= num_tokens

    def take_back(self, seq: Sequence) -> None:
        _, num_tokens = self.chunks.pop(seq.seq_id, (seq, 0))
        self.budget += num_tokens

    def plan(self, step_id: int, kv: KVCacheManager) -> StepPlan:
        joints = kv.joints
        of = joints.of if joints else _nothing  # asked for every sequence in every step
        return StepPlan(
            step_id=step_id,
            scheduled=tuple(scheduled_chunk(seq, count, of(seq)) for seq, count in self.chunks.values()),
            preempted_seq_ids=tuple(seq.seq_id for seq in self.preempted),
            transfers=kv.take_transfers(),
        )

    def waits(self, num_waiting: int, num_free_seqs: int) -> Waits:
        """Why those who still wait do, now that the step is decided."""
        reason = None
        if num_waiting == 0:
            pass
        elif self.preempted or self.is_full:
            reason = WaitReason.KV_BLOCKS
        elif num_free_seqs <= 0:
            reason = WaitReason.MAX_NUM_SEQS
        elif self.budget <= 0:
            reason = WaitReason.BUDGET
        return Waits(reason, tuple(self.held), num_waiting)


def _nothing(seq: Sequence) -> tuple[JoinedTokens, ...]:
    return ()


def _fetch_ahead(waiting: WaitingLine, kv: KVCacheManager, now: float) -> None:
    """Bring blocks back from disk for those that are next in line, before their turn comes."""
    if not kv.tiers.has_disk:
        return
    ahead: list[Sequence] = []
    while len(ahead) < MAX_FETCHED_AHEAD and (seq := waiting.pop(NO_LIMIT, now)) is not None:
        ahead.append(seq)
        kv.fetch(seq, num_matchable_tokens(seq))
    for seq in ahead:
        waiting.push(seq)


def max_num_tokens(seq: Sequence, max_model_len: int) -> int:
    """Most tokens the sequence can ever have, prompt included."""
    max_tokens = seq.request.sampling.max_tokens
    if max_tokens is None:
        return max_model_len
    return min(seq.num_prompt_tokens + max_tokens, max_model_len)
