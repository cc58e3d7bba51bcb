"""The engine: one call to ``step`` decides, computes and reports one step for every request at once.

It joins the scheduler, the executor and the text side, and knows none of their insides. It is not
thread-safe and has no thread: whoever drives it (engine thread, offline caller, simulator) calls ``submit``,
``abort`` and ``step`` in turn. Time comes from its clock, so a virtual clock turns it into a simulator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.client import EngineInfo, StepStats
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.memory_pressure import GrowingCache, MemoryState
from headrace.core.request import (
    FinishReason,
    OutputError,
    Request,
    RequestOutput,
    SequenceProgress,
)
from headrace.core.sampling import SamplingParams
from headrace.core.sequence import Sequence
from headrace.core.step import Executor, StepPlan
from headrace.core.timeline import SequenceTimeline
from headrace.engine.constraints import Constraints, GrammarSource
from headrace.engine.continuation import Continuation, Taken
from headrace.engine.expected_step import expected_step_s
from headrace.engine.failed_steps import FailedSteps
from headrace.engine.idle import IdleWork, NoIdleWork
from headrace.engine.idle_audit import IdleAudit
from headrace.engine.relief import Relief, Unwatched, WatchesMemory, shed_error
from headrace.engine.sequence_outputs import News, delta_output, last_output, warning_output
from headrace.engine.step_stats import step_stats
from headrace.engine.text_stream import TextStream
from headrace.engine.timeline import NoTimelines, TimelineRecorder, Timelines
from headrace.scheduler.scheduler import Scheduler, SequenceUpdate, max_num_tokens

logger = logging.getLogger(__name__)

GRAMMAR_WAIT_S = 0.005
"""How long a step that has nothing to compute waits for a grammar before it looks at the inbox again."""


_NOTHING = Taken("", ())
"""What is taken in of a step that sampled no token of a sequence."""


class TextSource(Protocol):
    """Makes the text side of a request; a tokenizer behind it, or a fake."""

    @property
    def grammars(self) -> GrammarSource: ...

    def text_streams(self, sampling: SamplingParams) -> list[TextStream]:
        """Return one stream for each of the ``n`` sequences."""
        ...


@dataclass(slots=True)
class _Live:
    """A sequence that has not ended, with its text."""

    seq: Sequence
    text: TextStream


class Engine:
    """Continuous batching over one executor.

    Every sequence of a submitted request gets exactly one output with a finish reason, whatever happens:
    completion, abort or failure.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        kv: KVCacheManager,
        executor: Executor,
        texts: TextSource,
        clock: Clock,
        info: EngineInfo,
    ) -> None:
        self.info = info
        self.meters = scheduler.meters
        self.idle: IdleWork = NoIdleWork()
        self._scheduler = scheduler
        self._kv = kv
        self._executor = executor
        self._texts = texts
        self._clock = clock
        self._eos_token_ids = frozenset(info.eos_token_ids)
        self._constraints = Constraints(texts.grammars, self._eos_token_ids)
        self._continuation = Continuation(scheduler, self._constraints)
        self._live: dict[int, _Live] = {}
        self._seq_ids: dict[str, list[int]] = {}
        self._next_seq_id = 0
        self._ended: list[RequestOutput] = []
        self._failures = FailedSteps()
        self._last_step = (0, 0, 0.0)
        self._computing: StepPlan | None = None
        self._books = IdleAudit(kv)
        self._timelines: Timelines = NoTimelines()
        self._relief = Relief(Unwatched(), ())

    def record_timelines(self) -> None:
        """Keep a timeline of every request from now on, for ``timeline`` to tell."""
        recorder = TimelineRecorder(self._clock, self._kv.block_size)
        self._scheduler.listen(recorder)
        self._timelines = recorder

    def relieve(self, watch: WatchesMemory, others: SequenceOf[GrowingCache] = ()) -> None:
        """From now on give way when ``watch`` says that memory is short, and have ``others`` do so as well."""
        self._relief = Relief(watch, (self._kv.growth, self._constraints, *others))

    def untaken_cache_bytes(self) -> int:
        """What the KV cache and the host tier may take that they have never touched. For any thread to ask."""
        return self._kv.growth.num_untouched_blocks * (self.info.kv_cache_bytes // self.info.num_blocks)

    @property
    def memory(self) -> MemoryState:
        """How short memory is. For any thread to ask."""
        return self._relief.watch.state(self._clock.now())

    def timeline(self, request_id: str) -> list[SequenceTimeline]:
        """Where the time of a request went; nothing if it is not known, not any more, or nothing is recorded."""
        return self._timelines.find(request_id)

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to compute or to report."""
        return self._scheduler.has_work or bool(self._ended) or self._constraints.num_waiting > 0

    @property
    def expected_step_s(self) -> float:
        """How long the step that is being computed is foretold to take; 0 between steps. For any thread to ask."""
        plan = self._computing
        return 0.0 if plan is None else expected_step_s(plan, self.meters.costs, self.info.num_parameters)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises ``InvalidRequest`` for one that could never run here and ``Overloaded`` for one refused by load.
        """
        self._relief.admit(self._clock.now())
        sequences = self._new_sequences(request)
        self._scheduler.admit(sequences[0], self._clock.now())
        self._enter(request, sequences, self._texts.text_streams(request.sampling))

    def resume(self, request: Request, progress: SequenceOf[SequenceProgress]) -> None:
        """Carry on a request that an earlier engine began; ``progress`` has one entry for each sequence.

        What comes out, together with what had come before, is what one engine would have given. It was admitted
        once and is not asked to queue again. Raises ``InvalidRequest`` for one that could never run here.
        """
        sequences, texts = self._new_sequences(request), self._texts.text_streams(request.sampling)
        for seq, text, done in zip(sequences, texts, progress, strict=True):
            seq.resume(done)
            for token_id in done.token_ids:
                text.push(token_id)  # its caller has this text: it was sent with the token
        unfinished = [index for index, done in enumerate(progress) if not done.is_finished]
        self._enter(request, [sequences[index] for index in unfinished], [texts[index] for index in unfinished])

    def abort(self, request_id: str) -> None:
        """End a request and free what it holds at once; unknown and finished ids are ignored."""
        for seq_id in list(self._seq_ids.get(request_id, ())):
            live = self._live[seq_id]
            self._end(live.seq, FinishReason.ABORT)
            self._ended.append(self._last_output(live, News(live.text.finish())))

    def confirm(self, request_id: str) -> None:
        """Serve a request that was made on a guess like any other from now on; unknown ids are ignored."""
        for seq_id in self._seq_ids.get(request_id, ()):
            self._live[seq_id].seq.is_guess = False

    def withdraw_queued(self) -> list[str]:
        """Forget the requests of which nothing has run yet and return their ids; no output tells of them."""
        queued = [name for name, ids in self._seq_ids.items() if not any(self._live[i].seq.has_begun for i in ids)]
        for seq_id in [seq_id for request_id in queued for seq_id in self._seq_ids[request_id]]:
            self._end(self._live[seq_id].seq, FinishReason.ABORT)
            self._forget(self._live[seq_id].seq)
        return queued

    def clear_prefix_cache(self) -> None:
        """Forget every cached prefix that no sequence uses."""
        self._kv.clear_prefix_cache()

    def step(self) -> list[RequestOutput]:
        """Run one step and report what changed, in plan order; aborted, overdue and shed requests come first."""
        outputs, self._ended = self._ended, []
        now = self._clock.now()
        self._relief.settle_caches(now)
        outputs.extend(self._admit_constrained())
        outputs.extend(self._error_output(seq, error) for seq, error in self._scheduler.end_overdue(now))
        outputs.extend(self._shed(now))
        plan = self._scheduler.schedule(now)
        self._last_step = (0, 0, 0.0)
        if not plan.is_empty:
            outputs.extend(self._output(update) for update in self._execute(plan))
        elif not outputs and self._constraints.num_waiting:
            self._constraints.wait(GRAMMAR_WAIT_S)
        if not self._scheduler.has_work:
            self._books.check(self._clock.now())
        return outputs

    def stats(self) -> StepStats:
        return step_stats(self._scheduler, self._kv, self._last_step, self._constraints)

    def close(self) -> None:
        self.idle.close()
        self._constraints.close()
        self._executor.close()

    def _new_sequences(self, request: Request) -> list[Sequence]:
        if request.request_id in self._seq_ids:
            raise InvalidRequest(f"a request with the id {request.request_id!r} is already running", "request_id")
        first, n = self._next_seq_id, request.sampling.n
        sequences = [Sequence(first + index, request, index, self._eos_token_ids) for index in range(n)]
        self._check_fits(sequences[0])
        self._next_seq_id += n
        return sequences

    def _enter(self, request: Request, sequences: list[Sequence], texts: list[TextStream]) -> None:
        """Take in a request's sequences: into the scheduler's queue, or behind the compiling of their grammar."""
        if request.constraint is not None:
            self._constraints.begin(request, sequences)
        self._seq_ids[request.request_id] = [seq.seq_id for seq in sequences]
        for seq, text in zip(sequences, texts, strict=True):
            self._live[seq.seq_id] = _Live(seq, text)
            if request.constraint is None:
                self._scheduler.add(seq)

    def _check_fits(self, seq: Sequence) -> None:
        num_tokens = max_num_tokens(seq, self.info.max_model_len)
        if not self._kv.fits(num_tokens):
            raise InvalidRequest(
                f"prompt {seq.num_prompt_tokens} + max_tokens {num_tokens - seq.num_prompt_tokens} = {num_tokens} "
                f"tokens, but the KV cache holds {self.info.num_kv_tokens}; lower max_tokens or start the server "
                "with a larger --kv-cache-bytes",
                "max_tokens",
            )

    def _admit_constrained(self) -> Iterable[RequestOutput]:
        """Queue the sequences whose grammar is compiled; the outputs are of those that have none."""
        for settled in self._constraints.take_settled():
            if settled.error is None:
                for seq in settled.sequences:
                    self._scheduler.add(seq)
                    self._timelines.constrain(seq.seq_id, self._constraints.meter(seq))
                    if settled.warnings:
                        yield warning_output(seq, settled.warnings)
            else:
                yield from self._refused(settled.sequences, settled.error)

    def _refused(self, sequences: Iterable[Sequence], error: HeadraceError) -> Iterable[RequestOutput]:
        for seq in sequences:
            seq.finish(FinishReason.ERROR)
            yield self._last_output(self._live[seq.seq_id], News(error=OutputError.of(error)))

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        """End a sequence wherever it is; one that still waits for its grammar is unknown to the scheduler."""
        if self._constraints.is_waiting(seq):
            seq.finish(reason)
        else:
            self._scheduler.finish(seq, reason)

    def _execute(self, plan: StepPlan) -> Iterable[SequenceUpdate]:
        """Compute a plan. A step that fails costs its own requests; repeated failure is fatal."""
        self._computing = plan
        try:
            result = self._executor.execute(plan, self._constraints.start_mask(plan))
        except Exception as error:
            self._constraints.settle_mask(())
            lost, message = self._failures.judge(plan, error)
            return self._scheduler.fail_step(lost, message)
        finally:
            self._computing = None
        self._constraints.settle_mask(result.masked_mass)
        self._failures.note_success()
        self._last_step = (plan.num_tokens, plan.num_samples, result.elapsed_s)
        return self._scheduler.update(plan, result, self._clock.now())

    def _output(self, update: SequenceUpdate) -> RequestOutput:
        live = self._live[update.seq.seq_id]
        if update.error is not None:
            return self._last_output(live, News(error=OutputError("RequestFailed", update.error)))
        taken = _NOTHING if update.token_id is None else self._continuation.take(live.seq, live.text, update.token_id)
        if taken.failure:
            return self._last_output(live, News(error=OutputError("RequestFailed", taken.failure)))
        if live.seq.is_finished:
            return self._last_output(live, News(taken.text + live.text.finish(), taken.token_ids, update))
        return delta_output(live.seq, News(taken.text, taken.token_ids, update))

    def _shed(self, now: float) -> Iterable[RequestOutput]:
        """End one request if memory is that short."""
        request_id = self._relief.shed((live.seq for live in self._live.values()), now)
        for seq_id in [] if request_id is None else list(self._seq_ids[request_id]):
            seq = self._live[seq_id].seq
            self._end(seq, FinishReason.ERROR)
            yield self._error_output(seq, shed_error())

    def _error_output(self, seq: Sequence, error: HeadraceError) -> RequestOutput:
        live = self._live[seq.seq_id]
        return self._last_output(live, News(live.text.finish(), error=OutputError.of(error)))

    def _last_output(self, live: _Live, news: News) -> RequestOutput:
        """Report a finished sequence and forget it."""
        self._forget(live.seq)
        return last_output(live.seq, news, self._clock.now(), self._timelines.preempted_s(live.seq.seq_id))

    def _forget(self, seq: Sequence) -> None:
        del self._live[seq.seq_id]
        self._constraints.forget(seq)
        siblings = self._seq_ids[seq.request.request_id]
        siblings.remove(seq.seq_id)
        if not siblings:
            del self._seq_ids[seq.request.request_id]
