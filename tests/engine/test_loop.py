from __future__ import annotations

import queue
import threading

import pytest

from headrace.core.client import StepStats
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import FinishReason, RequestOutput
from headrace.core.timeline import SequenceTimeline
from headrace.engine.loop import EngineLoop
from tests.engine.conditions import PATIENCE_S, eventually_sync
from tests.fakes import ManualClock
from tests.fakes_engine import INVALID, OVERLOAD, STEP_BUG, SUBMIT_BUG, FakeEngine, expected_tokens, make_request


class Ear:
    """A listener that remembers, and lets a test wait for what it heard."""

    def __init__(self) -> None:
        self.steps: queue.Queue[tuple[list[RequestOutput], StepStats]] = queue.Queue()
        self.refusals: queue.Queue[tuple[str, Exception]] = queue.Queue()
        self.deaths: queue.Queue[EngineDead] = queue.Queue()
        self.answers: queue.Queue[tuple[int, list[SequenceTimeline]]] = queue.Queue()
        self.threads: set[str] = set()

    def on_outputs(self, outputs: list[RequestOutput], stats: StepStats) -> None:
        self.threads.add(threading.current_thread().name)
        self.steps.put((outputs, stats))

    def on_refused(self, request_id: str, error: InvalidRequest | Overloaded) -> None:
        self.refusals.put((request_id, error))

    def on_timeline(self, question_id: int, sequences: list[SequenceTimeline]) -> None:
        self.answers.put((question_id, sequences))

    def on_death(self, error: EngineDead) -> None:
        self.deaths.put(error)

    def outputs_until_end(self, request_id: str) -> list[RequestOutput]:
        found: list[RequestOutput] = []
        while not found or found[-1].finish_reason is None:
            outputs, _ = self.steps.get(timeout=PATIENCE_S)
            found += [output for output in outputs if output.request_id == request_id]
        return found


class GatedEngine(FakeEngine):
    """Takes a step only when the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def step(self) -> list[RequestOutput]:
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().step()


def test_a_submitted_request_is_stepped_to_its_end_on_the_engine_thread() -> None:
    ear, request = Ear(), make_request()
    loop = EngineLoop(FakeEngine(), ear)
    loop.start()
    loop.submit(request)
    outputs = ear.outputs_until_end("r")
    loop.close()
    assert [token for output in outputs for token in output.token_ids] == expected_tokens(request)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert ear.threads == {"engine"}


def test_everything_in_the_inbox_is_taken_in_before_the_next_step() -> None:
    ear, engine = Ear(), GatedEngine()
    loop = EngineLoop(engine, ear)
    loop.submit(make_request("first", max_tokens=1))
    loop.start()
    assert engine.entered.acquire(timeout=PATIENCE_S)
    for request_id in ("a", "b", "c"):
        loop.submit(make_request(request_id, max_tokens=1))
    loop.abort("b")
    engine.gate.release(2)
    assert [output.request_id for output in ear.steps.get(timeout=PATIENCE_S)[0]] == ["first"]
    second = ear.steps.get(timeout=PATIENCE_S)[0]
    loop.close()
    assert sorted((output.request_id, output.finish_reason) for output in second) == sorted(
        [("a", FinishReason.LENGTH), ("b", FinishReason.ABORT), ("c", FinishReason.LENGTH)], key=lambda item: item[0]
    )


def test_an_idle_loop_makes_no_steps_and_has_no_tick_age() -> None:
    ear, engine, clock = Ear(), FakeEngine(), ManualClock()
    loop = EngineLoop(engine, ear, clock)
    loop.start()
    loop.submit(make_request(max_tokens=3))
    ear.outputs_until_end("r")
    eventually_sync(lambda: loop.tick.age_s == 0.0)
    clock.advance(100.0)
    assert loop.tick.age_s == 0.0
    assert engine.num_steps == 3
    loop.close()


def test_a_tick_tells_how_long_a_step_has_been_going_on_and_what_was_foretold_of_it() -> None:
    engine, clock = GatedEngine(), ManualClock()
    engine.expected_step_s = 90.0
    loop = EngineLoop(engine, Ear(), clock)
    loop.start()
    loop.submit(make_request(max_tokens=1))
    assert engine.entered.acquire(timeout=PATIENCE_S)
    clock.advance(7.0)
    assert loop.tick == (7.0, 90.0)
    engine.gate.release()
    loop.close()


@pytest.mark.parametrize(("first", "error_type"), [(INVALID, InvalidRequest), (OVERLOAD, Overloaded)])
def test_a_request_the_engine_refuses_is_told_with_its_error(first: int, error_type: type[Exception]) -> None:
    ear = Ear()
    loop = EngineLoop(FakeEngine(), ear)
    loop.start()
    loop.submit(make_request("bad", prompt=(first,)))
    request_id, error = ear.refusals.get(timeout=PATIENCE_S)
    assert request_id == "bad"
    assert type(error) is error_type
    loop.submit(make_request("good"))
    assert ear.outputs_until_end("good")[-1].finish_reason is FinishReason.LENGTH
    loop.close()


def test_an_unexpected_exception_in_submit_ends_that_request_alone() -> None:
    ear = Ear()
    loop = EngineLoop(FakeEngine(), ear)
    loop.start()
    loop.submit(make_request("bad", prompt=(SUBMIT_BUG,), n=3))
    outputs, stats = ear.steps.get(timeout=PATIENCE_S)
    assert [output.index for output in outputs] == [0, 1, 2]
    assert {output.finish_reason for output in outputs} == {FinishReason.ERROR}
    assert {output.error.kind for output in outputs if output.error} == {"RequestFailed"}
    assert "a bug in submit" not in str(outputs)
    assert stats.num_step_tokens == 0
    loop.submit(make_request("good"))
    assert ear.outputs_until_end("good")[-1].finish_reason is FinishReason.LENGTH
    loop.close()


def test_an_exception_in_step_is_told_once_and_ends_the_loop_and_the_engine() -> None:
    ear, engine = Ear(), FakeEngine()
    loop = EngineLoop(engine, ear)
    loop.start()
    loop.submit(make_request(prompt=(STEP_BUG,)))
    error = ear.deaths.get(timeout=PATIENCE_S)
    loop.join()
    assert isinstance(error, EngineDead)
    assert "ZeroDivisionError" in error.message
    assert isinstance(loop.failure, ZeroDivisionError)
    assert not loop.is_alive
    assert engine.is_closed
    assert ear.deaths.empty()
    loop.close()


def test_closing_ends_after_the_current_step_and_closes_the_engine_without_a_death() -> None:
    ear, engine = Ear(), FakeEngine(step_s=0.001)
    loop = EngineLoop(engine, ear)
    loop.start()
    loop.submit(make_request(max_tokens=1_000_000))
    ear.steps.get(timeout=PATIENCE_S)
    loop.close()
    assert not loop.is_alive
    assert engine.is_closed
    assert loop.failure is None
    assert ear.deaths.empty()


def test_closing_a_loop_that_never_started_closes_its_engine() -> None:
    engine = FakeEngine()
    EngineLoop(engine, Ear()).close()
    assert engine.is_closed


def test_aborting_an_unknown_request_changes_nothing() -> None:
    ear = Ear()
    loop = EngineLoop(FakeEngine(), ear)
    loop.start()
    loop.abort("nobody")
    loop.submit(make_request())
    assert ear.outputs_until_end("r")[-1].finish_reason is FinishReason.LENGTH
    loop.close()


def test_the_cache_is_cleared_between_what_came_before_and_what_comes_after() -> None:
    engine, ear = FakeEngine(), Ear()
    loop = EngineLoop(engine, ear)
    loop.start()
    loop.clear_prefix_cache()
    loop.submit(make_request("after"))
    ear.outputs_until_end("after")
    assert engine.num_cleared == 1
    loop.close()
