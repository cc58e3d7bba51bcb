"""Faults users of LLM servers report most, through the engine: aborts in every state, pools too small, lost blocks."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.core.client import StepStats
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import FinishReason, RequestOutput
from headrace.core.sequence import Sequence, SequenceStatus
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.core.timeline import SequenceTimeline
from headrace.engine.loop import EngineLoop
from tests.engine.conditions import PATIENCE_S
from tests.engine.house import EOS, VOCAB_SIZE, House, joined
from tests.fakes import ContentExecutor, expected_output, make_request


@dataclass
class WatchedExecutor(ContentExecutor):
    """Calls ``watch`` on the engine's thread in the middle of every step: when the plan is made, not yet applied."""

    watch: Callable[[], None] = field(default=lambda: None)

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        self.watch()
        return super().execute(plan, token_mask)


class Heard:
    """What a loop reports; ``is_over`` is set when ``num_sequences`` have ended or the engine is dead."""

    def __init__(self, num_sequences: int) -> None:
        self.outputs: list[RequestOutput] = []
        self.death: EngineDead | None = None
        self.is_over = threading.Event()
        self._num_open = num_sequences

    def on_outputs(self, outputs: list[RequestOutput], stats: StepStats) -> None:
        self.outputs.extend(outputs)
        self._num_open -= sum(output.finish_reason is not None for output in outputs)
        if self._num_open == 0:
            self.is_over.set()

    def on_refused(self, request_id: str, error: InvalidRequest | Overloaded) -> None:
        raise AssertionError(f"{request_id} was refused: {error}")

    def on_timeline(self, question_id: int, sequences: list[SequenceTimeline]) -> None:
        raise AssertionError(f"nobody asked question {question_id}")

    def on_death(self, error: EngineDead) -> None:
        self.death = error
        self.is_over.set()


MAX_TOKENS = 20
NEIGHBOUR, TARGET = [9, 8, 7, 6, 5, 4, 3, 2], list(range(1, 21))


@dataclass(frozen=True)
class Moment:
    """A state of the target in the middle of a step, in a house where it occurs."""

    is_now: Callable[[Sequence], bool]
    max_num_seqs: int = 8
    num_blocks: int = 40


MOMENTS = {
    "waiting": Moment(lambda seq: seq.status is SequenceStatus.WAITING, max_num_seqs=1),
    "its first chunk": Moment(lambda seq: seq.status is SequenceStatus.RUNNING and seq.num_computed_tokens == 0),
    "a later chunk": Moment(lambda seq: 0 < seq.num_computed_tokens < seq.num_prompt_tokens),
    "decoding": Moment(lambda seq: seq.num_output_tokens == 3),
    "preempted": Moment(lambda seq: seq.num_preemptions > 0 and seq.status is SequenceStatus.WAITING, num_blocks=12),
    "computed anew": Moment(
        lambda seq: seq.num_preemptions > 0 and seq.status is SequenceStatus.RUNNING, num_blocks=12
    ),
    "finishing": Moment(lambda seq: seq.num_output_tokens == MAX_TOKENS - 1),
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", MOMENTS)
def test_b06_an_abort_in_any_state_gives_one_end_and_all_blocks_back(name: str, n: int) -> None:
    moment = MOMENTS[name]
    executor = WatchedExecutor(moment.num_blocks, 4, VOCAB_SIZE)
    house = House(moment.num_blocks, budget=8, max_num_seqs=moment.max_num_seqs, executor=executor)
    heard = Heard(1 + n)
    loop = EngineLoop(house.engine, heard)
    hits: list[Sequence] = []

    def abort_at_the_moment() -> None:
        live = [one.seq for one in house.engine._live.values()]
        targets = [seq for seq in live if seq.request.request_id == "target"]
        if not hits and (now := [seq for seq in targets if moment.is_now(seq)]):
            hits.extend(now)
            for request_id in ("target", "target", "nobody"):
                loop.abort(request_id)

    executor.watch = abort_at_the_moment
    loop.submit(make_request(NEIGHBOUR, "neighbour", 1.0, max_tokens=MAX_TOKENS, ignore_eos=True))
    loop.submit(make_request(TARGET, "target", 2.0, n=n, max_tokens=MAX_TOKENS, ignore_eos=True))
    loop.start()
    is_over = heard.is_over.wait(PATIENCE_S)
    loop.close()

    assert is_over, "a sequence has no end"
    assert hits, "the target was never in this state"
    assert heard.death is None
    assert joined(heard.outputs, "neighbour")[1] == expected_output(NEIGHBOUR, MAX_TOKENS, VOCAB_SIZE)
    for index in range(n):
        _, token_ids, last = joined(heard.outputs, "target", index)
        is_complete = name == "finishing" and len(token_ids) == MAX_TOKENS
        assert last.finish_reason is (FinishReason.LENGTH if is_complete else FinishReason.ABORT)
        assert token_ids == expected_output(TARGET, len(token_ids), VOCAB_SIZE)
    assert not house.engine.has_work
    assert (house.engine._live, house.engine._seq_ids) == ({}, {})
    assert house.kv.num_private_blocks == 0
    assert house.kv.check() == []


def test_b12_a_pool_for_two_of_twelve_long_requests_always_makes_progress() -> None:
    house = House(num_blocks=25, budget=64, max_num_seqs=12)  # 100 tokens, where three of 40 cannot fit
    prompts = [[(7 * i + 3 * k) % VOCAB_SIZE for i in range(20)] for k in range(12)]
    for k, prompt in enumerate(prompts):
        house.engine.submit(make_request(prompt, f"r{k}", float(k), max_tokens=20, ignore_eos=True))
    outputs = []
    while house.engine.has_work:
        num_plans = len(house.executor.plans)
        outputs += house.engine.step()
        assert len(house.executor.plans) == num_plans + 1, "a step in which nothing ran although requests waited"
        assert num_plans < 2000, "the requests take one another's blocks for ever"
    for k, prompt in enumerate(prompts):
        _, token_ids, last = joined(outputs, f"r{k}")
        assert token_ids == expected_output(prompt, 20, VOCAB_SIZE)
        assert last.finish_reason is FinishReason.LENGTH
    assert house.kv.num_private_blocks == 0


def test_b14_no_stream_waits_for_more_than_one_chunk_of_a_long_prompt() -> None:
    chunk, num_streams, num_prompt_tokens = 64, 16, 500
    house = House(num_blocks=400, budget=chunk, max_model_len=600, max_num_seqs=32)
    for k in range(num_streams):
        house.engine.submit(make_request([k, k + 1], f"s{k}", float(k), max_tokens=80, ignore_eos=True))
    while house.engine.stats().num_running < num_streams:
        house.engine.step()
    house.engine.submit(make_request([EOS] * num_prompt_tokens, "long", 99.0, max_tokens=3, ignore_eos=True))
    num_steps, heard = 0, ""
    while heard != "long":
        told = house.engine.step()
        num_steps += 1
        assert house.engine.stats().num_step_tokens <= chunk
        assert {f"s{k}" for k in range(num_streams)} <= {output.request_id for output in told}, "a stream was skipped"
        heard = told[-1].request_id
    assert num_steps == -(-num_prompt_tokens // (chunk - num_streams)), "what the streams leave is all for the prompt"


@pytest.mark.parametrize("seed", range(8))
def test_b18_blocks_are_conserved_at_every_idle_moment_of_a_random_life(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([2, 4, 8])
    house = House(num_blocks=48 // block_size, block_size=block_size, budget=rng.choice([4, 8, 32]))
    ids: list[str] = []
    for busy_time in range(30):
        for _ in range(rng.randrange(5, 25)):
            if rng.random() < 0.4:
                ids.append(f"r{len(ids)}")
                prompt = [(rng.randrange(2) + i) % VOCAB_SIZE for i in range(rng.randrange(1, 20))]
                n, max_tokens = rng.choice([1, 1, 3]), rng.randrange(1, 12)
                house.engine.submit(make_request(prompt, ids[-1], float(len(ids)), n=n, max_tokens=max_tokens))
            if ids and rng.random() < 0.2:
                house.engine.abort(rng.choice(ids))
            house.engine.step()
        house.run()
        stats = house.engine.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks, f"after {busy_time}"
        assert house.kv.check() == []
    stats = house.engine.stats()
    assert min(stats.num_preemptions, stats.prefix_hit_tokens, stats.num_evicted_blocks) > 0, "too quiet a life"


def test_b18_a_block_that_is_never_given_back_is_logged_with_its_owner_and_mended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()
    house.run()
    with monkeypatch.context() as patch:
        patch.setattr(house.kv, "release", lambda seq: None)  # the scheduler "forgets" it
        house.engine.submit(make_request([1, 2, 3, 4, 5, 6], "forgetful", max_tokens=3, ignore_eos=True))
        with caplog.at_level(logging.ERROR):
            house.run()
    assert "forgetful" in caplog.text
    assert "repaired" in caplog.text
    assert house.kv.check() == []
    house.engine.submit(make_request([1, 2, 3, 4, 5, 6], "next", max_tokens=3, ignore_eos=True))
    assert joined(house.run(), "next")[1] == expected_output([1, 2, 3, 4, 5, 6], 3, VOCAB_SIZE)
