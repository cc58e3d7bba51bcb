"""An engine whose answers can be computed on paper, for everything that drives engines.

Token ``k`` of sequence ``index`` is ``(sum(prompt) + index + k) % 1000`` and its text is ``"<token> "``. Every
running sequence gets one token per step and ends with LENGTH after ``max_tokens``. The first token of a prompt
may ask for trouble.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.client import EngineInfo, StepStats
from headrace.core.errors import InvalidRequest, Overloaded
from headrace.core.memory_pressure import UNWATCHED, MemoryState
from headrace.core.request import FinishReason, Request, RequestOutput, RequestTimes, SequenceProgress, Usage
from headrace.core.sampling import SamplingParams
from headrace.core.timeline import SequenceTimeline
from headrace.engine.idle import IdleWork, NoIdleWork

INVALID, OVERLOAD, SUBMIT_BUG, STEP_BUG, STEP_HANG = 900, 901, 902, 903, 904
"""First prompt tokens that ask for: two refusals, an exception in submit, one in step, a step of a minute."""

INFO = EngineInfo(
    model="fake",
    architecture="fake",
    dtype="float32",
    backend="fake",
    num_parameters=1,
    vocab_size=1000,
    max_model_len=1_000_000,
    block_size=16,
    num_blocks=64,
    kv_cache_bytes=64,
    max_num_seqs=256,
    max_num_batched_tokens=512,
    eos_token_ids=[999],
    stage_times_s={"load": 0.5},
)


def make_request(
    request_id: str = "r",
    prompt: tuple[int, ...] = (1, 2, 3),
    max_tokens: int = 4,
    n: int = 1,
    arrival_time: float | None = None,
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(n=n, max_tokens=max_tokens),
        seed=7,
        arrival_time=time.monotonic() if arrival_time is None else arrival_time,
    )


def expected_tokens(request: Request, index: int = 0) -> list[int]:
    assert request.sampling.max_tokens is not None
    start = sum(request.prompt_token_ids) + index
    return [(start + k) % 1000 for k in range(request.sampling.max_tokens)]


def expected_text(request: Request, index: int = 0) -> str:
    return "".join(f"{token} " for token in expected_tokens(request, index))


def a_timeline(request_id: str) -> SequenceTimeline:
    return SequenceTimeline(
        request_id=request_id,
        index=0,
        tenant="",
        service_class="default",
        state="waiting",
        age_s=1.0,
        num_prompt_tokens=3,
        num_output_tokens=0,
        num_waiting=2,
        num_running=1,
        seconds={"queue": 1.0},
    )


@dataclass
class FakeEngine:
    """Obeys the engine's contract: exactly one last output per sequence, abort included."""

    step_s: float = 0.0
    info: EngineInfo = INFO
    num_steps: int = 0
    is_closed: bool = False
    num_cleared: int = 0
    num_confirmed: int = 0
    idle: IdleWork = field(default_factory=NoIdleWork)
    expected_step_s: float = 0.0
    memory: MemoryState = UNWATCHED
    _requests: dict[str, Request] = field(default_factory=dict)
    _running: dict[tuple[str, int], int] = field(default_factory=dict)
    _ended: list[RequestOutput] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._ended)

    def submit(self, request: Request) -> None:
        match request.prompt_token_ids[0]:
            case first if first == INVALID:
                raise InvalidRequest("the prompt starts with 900", "prompt")
            case first if first == OVERLOAD:
                raise Overloaded("the queue is full", 2.5)
            case first if first == SUBMIT_BUG:
                raise ZeroDivisionError("a bug in submit")
        self._requests[request.request_id] = request
        for index in range(request.sampling.n):
            self._running[request.request_id, index] = 0

    def resume(self, request: Request, progress: Sequence[SequenceProgress]) -> None:
        self.submit(request)
        for index, done in enumerate(progress):
            if done.is_finished:
                del self._running[request.request_id, index]
            else:
                self._running[request.request_id, index] = len(done.token_ids)

    def withdraw_queued(self) -> list[str]:
        return []  # everything submitted runs at once

    def abort(self, request_id: str) -> None:
        for key in [key for key in self._running if key[0] == request_id]:
            num_tokens = self._running.pop(key)
            self._ended.append(self._output(key, num_tokens, (), FinishReason.ABORT))
        self._requests.pop(request_id, None)

    def confirm(self, request_id: str) -> None:
        self.num_confirmed += 1

    def clear_prefix_cache(self) -> None:
        self.num_cleared += 1

    def timeline(self, request_id: str) -> list[SequenceTimeline]:
        """Says of any running request that it has waited a second, and of no other anything."""
        return [a_timeline(request_id)] if request_id in self._requests else []

    def step(self) -> list[RequestOutput]:
        outputs, self._ended = self._ended, []
        if self._running and self.step_s:
            time.sleep(self.step_s)
        self.num_steps += 1
        for key, num_tokens in list(self._running.items()):
            outputs.append(self._advance(key, num_tokens))
        return outputs

    def stats(self) -> StepStats:
        num_running = len(self._running)
        return StepStats(
            num_running=num_running,
            num_waiting=0,
            num_blocks=self.info.num_blocks,
            num_free_blocks=self.info.num_blocks - num_running,
            num_cached_blocks=0,
            num_step_tokens=num_running,
            num_step_samples=num_running,
            step_s=self.step_s,
            prefix_query_tokens=10 * self.num_steps,
            prefix_hit_tokens=self.num_steps,
            num_preemptions=0,
            num_evicted_blocks=0,
        )

    def close(self) -> None:
        self.is_closed = True

    def _advance(self, key: tuple[str, int], num_tokens: int) -> RequestOutput:
        request_id, index = key
        request = self._requests[request_id]
        prompt = request.prompt_token_ids
        if prompt[0] == STEP_BUG:
            raise ZeroDivisionError("a bug in step")
        if prompt[0] == STEP_HANG:
            time.sleep(60)
        token_id = (sum(prompt) + index + num_tokens) % 1000
        num_tokens += 1
        is_last = num_tokens == request.sampling.max_tokens
        if not is_last:
            self._running[key] = num_tokens
            return self._output(key, num_tokens, (token_id,), None)
        del self._running[key]
        output = self._output(key, num_tokens, (token_id,), FinishReason.LENGTH)
        if not any(other == request_id for other, _ in self._running):
            del self._requests[request_id]
        return output

    def _output(
        self, key: tuple[str, int], num_tokens: int, token_ids: tuple[int, ...], reason: FinishReason | None
    ) -> RequestOutput:
        request = self._requests[key[0]]
        now = time.monotonic()
        arrival = request.arrival_time
        return RequestOutput(
            request_id=key[0],
            index=key[1],
            text="".join(f"{token} " for token in token_ids),
            token_ids=token_ids,
            usage=Usage(len(request.prompt_token_ids), 1, num_tokens),
            finish_reason=reason,
            times=None if reason is None else RequestTimes(arrival, arrival, arrival, now),
        )
