"""What an engine does at each level of memory pressure."""

from __future__ import annotations

import pytest

from headrace.core.errors import Overloaded
from headrace.core.memory_pressure import MemoryState, PressureLevel
from headrace.core.request import FinishReason, RequestOutput, SequenceProgress
from headrace.core.service_level import STANDARD_CLASSES
from headrace.engine.relief import SHED_INTERVAL_S
from tests.engine.house import VOCAB_SIZE, House, joined
from tests.fakes import expected_output, make_request

CALM, TIGHT, SCARCE, CRITICAL = PressureLevel
BATCH = STANDARD_CLASSES["batch"]


class Watch:
    """Says what it is told to say."""

    level = CALM

    def state(self, now: float) -> MemoryState:
        return MemoryState(self.level, 1234)


def watched_house(num_blocks: int = 32) -> tuple[House, Watch]:
    house, watch = House(num_blocks=num_blocks), Watch()
    house.engine.relieve(watch)
    return house, watch


def serve(house: House, request_id: str, prompt: list[int], max_tokens: int = 4) -> None:
    house.engine.submit(make_request(prompt, request_id, max_tokens=max_tokens))
    _, tokens, _ = joined(house.run(), request_id)
    assert tokens == expected_output(prompt, max_tokens, VOCAB_SIZE, frozenset([0]))


def step(house: House) -> list[RequestOutput]:
    house.clock.advance(SHED_INTERVAL_S)
    return house.engine.step()


def test_tight_memory_makes_the_cache_give_way_before_it_takes_more() -> None:
    house, watch = watched_house()
    serve(house, "a", list(range(1, 13)))
    num_untouched = house.kv.growth.num_untouched_blocks
    watch.level = TIGHT
    for number in range(8):
        serve(house, f"b{number}", [20 + number] * 8)
    assert house.kv.growth.num_untouched_blocks == num_untouched
    watch.level = CALM
    serve(house, "c", list(range(15, 27)))
    assert house.kv.growth.num_untouched_blocks < num_untouched
    assert house.kv.check() == []


def test_what_runs_gets_its_planned_memory_however_tight_it_is() -> None:
    house, watch = watched_house()
    watch.level = TIGHT
    serve(house, "a", list(range(1, 41)), max_tokens=12)
    assert house.kv.growth.num_untouched_blocks < 32


def test_scarce_memory_refuses_new_requests_and_serves_those_that_are_in() -> None:
    house, watch = watched_house()
    house.engine.submit(make_request([1, 2, 3], "in", max_tokens=4))
    watch.level = SCARCE
    with pytest.raises(Overloaded, match="short of memory") as refused:
        house.engine.submit(make_request([1, 2, 3], "new", max_tokens=4))
    assert refused.value.retry_after_s > 0
    progress = SequenceProgress([], False, 0, 0, 0.0)
    house.engine.resume(make_request([4, 5], "back", max_tokens=4), [progress])
    outputs = house.run()
    for request_id in ("in", "back"):
        assert joined(outputs, request_id)[2].finish_reason in (FinishReason.LENGTH, FinishReason.STOP)


def test_critical_memory_ends_one_request_of_the_lowest_tier_at_a_time_and_never_the_last() -> None:
    house, watch = watched_house()
    for request_id, level in (("batch", BATCH), ("gold", STANDARD_CLASSES["interactive"]), ("late batch", BATCH)):
        request = make_request([7, 8, 9], request_id, len(request_id), service_level=level, n=2, max_tokens=50)
        house.engine.submit(request)
    step(house)
    watch.level = CRITICAL
    ended = []
    for _ in range(5):
        lost = [output for output in step(house) if output.error is not None]
        ended.append(sorted({output.request_id for output in lost}))
        assert all(output.error is not None and output.error.kind == "RequestShed" for output in lost)
        assert len(lost) == 2 * len(ended[-1]), "both sequences of a request"
    assert ended == [["late batch"], ["batch"], [], [], []]
    watch.level = CALM
    house.run()
    assert house.kv.num_private_blocks == 0


def test_between_two_victims_there_is_time_to_see_whether_one_was_enough() -> None:
    house, watch = watched_house()
    for number in range(4):
        house.engine.submit(make_request([7, 8, 9], f"r{number}", max_tokens=50))
    watch.level = CRITICAL
    house.clock.advance(1.0)
    outputs = [*house.engine.step(), *house.engine.step(), *house.engine.step()]
    assert len([output for output in outputs if output.error is not None]) == 1


def test_an_engine_says_how_much_its_caches_may_yet_take() -> None:
    house, _ = watched_house()
    assert house.engine.memory == MemoryState(CALM, 1234)
    assert house.engine.untaken_cache_bytes() == 0, "a fake cache has no bytes"
