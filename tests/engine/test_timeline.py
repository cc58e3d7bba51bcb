"""Where the time of requests went, told by an engine whose every step takes one second."""

from __future__ import annotations

import pytest

from headrace.core.request import Request
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.core.timeline import Phase, SequenceTimeline
from headrace.engine import timeline, timeline_life
from headrace.engine.timeline_story import tell
from tests.engine.house import VOCAB_SIZE, House
from tests.fakes import ContentExecutor, ManualClock, make_request


class OneSecondSteps(ContentExecutor):
    """Takes a second for every step."""

    clock: ManualClock

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        self.clock.advance(1.0)
        return super().execute(plan, token_mask)


class TimedHouse(House):
    """An engine that records timelines; ``tick`` runs steps."""

    def __init__(self, num_blocks: int = 64, max_num_seqs: int = 8, budget: int = 16) -> None:
        executor = OneSecondSteps(num_blocks, 4, VOCAB_SIZE)
        super().__init__(num_blocks=num_blocks, max_num_seqs=max_num_seqs, budget=budget, executor=executor)
        executor.clock = self.clock
        self.engine.record_timelines()

    def submit(self, request_id: str, prompt: list[int], max_tokens: int, **fields: str) -> Request:
        request = make_request(
            prompt, request_id, arrival_time=self.clock.now(), max_tokens=max_tokens, ignore_eos=True, **fields
        )
        self.engine.submit(request)
        return request

    def tick(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.engine.step()

    def finish(self) -> None:
        while self.engine.has_work:
            self.engine.step()

    def life(self, request_id: str) -> SequenceTimeline:
        [life] = self.engine.timeline(request_id)
        return life


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * i + 13 * salt + 1) % VOCAB_SIZE for i in range(length)]


def phases(life: SequenceTimeline) -> list[Phase]:
    return [span.phase for span in life.spans]


def test_a_life_is_a_row_of_spans_without_gaps():
    house = TimedHouse(budget=8)
    house.submit("a", prompt(20), max_tokens=5)
    house.finish()
    life = house.life("a")
    assert phases(life) == [Phase.QUEUE, Phase.PREFILL, Phase.DECODE]
    queue, prefill, decode = life.spans
    assert (queue.duration_s, prefill.duration_s, decode.duration_s) == (0.0, 3.0, 4.0)
    assert (prefill.chunks, prefill.num_tokens, prefill.num_steps) == ((8, 8, 4), 20, 3)
    assert (decode.num_tokens, decode.num_steps, decode.num_other_tokens) == (4, 4, 0)
    assert life.age_s == sum(span.duration_s for span in life.spans) == sum(life.seconds.values()) == 7.0
    assert (life.state, life.num_output_tokens) == ("length", 5)


def test_a_wait_is_told_with_its_reason_and_with_whom_it_was_for():
    house = TimedHouse(max_num_seqs=1)
    house.submit("first", prompt(4, 1), max_tokens=6)
    house.tick()
    house.submit("second", prompt(4, 2), max_tokens=2)
    house.finish()
    life = house.life("second")
    queue = life.spans[0]
    assert (life.num_waiting, life.num_running) == (0, 1)
    assert queue.duration_s == 5.0
    assert queue.reasons == {"max_num_seqs": 5.0}
    assert (queue.num_steps, queue.num_tokens, queue.num_other_tokens) == (5, 0, 5)
    assert [(other.request_id, other.num_tokens) for other in queue.behind] == [("first", 5)]


def test_a_full_step_and_a_full_cache_are_told_apart():
    house = TimedHouse(budget=8)
    house.submit("long", prompt(24, 1), max_tokens=1)
    house.submit("short", prompt(4, 2), max_tokens=1)
    house.finish()
    assert house.life("short").spans[0].reasons == {"token_budget": 3.0}

    full = TimedHouse(num_blocks=8)
    full.submit("large", prompt(20, 1), max_tokens=8)
    full.tick()
    full.submit("next", prompt(20, 2), max_tokens=1)
    full.finish()
    assert full.life("next").spans[0].reasons == {"kv_blocks": 8.0}


def test_time_before_the_first_decision_is_the_step_in_progress():
    house = TimedHouse()
    house.submit("a", prompt(4), max_tokens=1)
    house.clock.advance(0.25)
    house.finish()
    assert house.life("a").spans[0].reasons == {"step_in_progress": 0.25}


def test_what_broke_the_cache_is_told():
    house = TimedHouse(budget=64)
    house.submit("cold", prompt(20), max_tokens=1)
    house.finish()
    house.submit("longer", prompt(20) + prompt(6, 3), max_tokens=1)
    house.finish()
    house.submit("parting", prompt(20) + prompt(6, 5), max_tokens=1)
    house.finish()
    cold, longer, parting = (house.life(name).cache for name in ("cold", "longer", "parting"))
    assert (cold.num_cached_tokens, cold.has_parted) == (0, False)
    assert (longer.num_cached_tokens, longer.has_parted) == (20, False)
    assert (parting.num_cached_tokens, parting.has_parted) == (20, True)


def test_a_prefix_that_somebody_else_computes_is_a_reason():
    house = TimedHouse(budget=14)
    house.submit("a", prompt(40), max_tokens=1)
    house.tick()
    house.submit("b", prompt(40), max_tokens=1)
    house.finish()
    assert "shared_prefix" in house.life("b").spans[0].reasons


def test_preemptions_say_whose_they_are_and_what_they_cost():
    house = TimedHouse(num_blocks=8)
    house.submit("first", prompt(8, 1), max_tokens=20)
    house.submit("second", prompt(8, 2), max_tokens=20)
    house.finish()
    life = house.life("second")
    assert life.num_preemptions >= 1
    gone = next(span for span in life.spans if span.phase is Phase.PREEMPTED)
    back = next(span for span in life.spans if span.phase is Phase.RECOMPUTE)
    assert gone.caused_by == "first"
    assert gone.reasons == {"kv_blocks": gone.duration_s}
    assert back.start_s == gone.start_s + gone.duration_s
    assert life.age_s == pytest.approx(sum(life.seconds.values()))
    assert house.engine._timelines.preempted_s(1) == life.seconds["preempted"] + life.seconds["recompute"]


def test_the_slowest_step_names_the_prompt_that_was_in_it():
    house = TimedHouse(budget=32)
    house.submit("stream", prompt(4, 1), max_tokens=6)
    house.tick(2)
    house.submit("intruder", prompt(24, 2), max_tokens=1)
    house.finish()
    slowest = house.life("stream").spans[-1].slowest_step
    assert slowest is not None
    assert slowest.duration_s == 1.0
    beside = house.life("stream").spans[-1]
    assert (beside.num_tokens, beside.num_other_tokens, beside.num_other_prompt_tokens) == (5, 24, 24)


def test_tokens_that_were_computed_together_saved_steps():
    house = TimedHouse()
    house.submit("a", prompt(4), max_tokens=12)
    house.tick(2)
    seq = house.engine._live[0].seq
    seq.token_ids += [7, 8, 9]  # as a grammar appends what it forces
    house.finish()
    decode = house.life("a").spans[-1]
    assert (decode.num_tokens, decode.num_steps, decode.num_saved_steps) == (11, 8, 3)
    assert "Of these 3 were forced by its grammar, which saved as many steps." in tell(house.life("a"))


def test_a_running_request_is_told_up_to_now():
    house = TimedHouse()
    house.submit("a", prompt(4), max_tokens=10)
    house.tick(3)
    life = house.life("a")
    assert life.state == "running"
    assert phases(life) == [Phase.QUEUE, Phase.PREFILL, Phase.DECODE]
    assert (life.spans[-1].num_tokens, life.seconds["decode"]) == (2, 2.0)


def test_an_aborted_request_ends_where_it_was():
    house = TimedHouse(max_num_seqs=1)
    house.submit("a", prompt(4, 1), max_tokens=10)
    house.submit("b", prompt(4, 2), max_tokens=10)
    house.tick(2)
    house.engine.abort("b")
    assert (house.life("b").state, phases(house.life("b"))) == ("abort", [Phase.QUEUE])


def test_requests_are_found_by_the_ids_people_have():
    house = TimedHouse()
    house.submit("chatcmpl-mine-0123456789ab", prompt(4), max_tokens=1)
    house.finish()
    for name in ("chatcmpl-mine-0123456789ab", "chatcmpl-mine", "mine", "mine-0123456789ab"):
        assert len(house.engine.timeline(name)) == 1, name
    for name in ("chatcmpl", "min", "0123456789ab", "chatcmpl-min", ""):
        assert house.engine.timeline(name) == [], name


def test_other_tenants_have_no_names():
    house = TimedHouse(max_num_seqs=1)
    house.submit("theirs", prompt(4, 1), max_tokens=4, tenant="them")
    house.submit("mine", prompt(4, 2), max_tokens=1, tenant="us")
    house.finish()
    life = house.life("mine")
    assert [other.request_id for other in life.spans[0].behind] == [""]
    assert "theirs" not in repr(life)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(timeline, "MAX_FINISHED", 3)
    monkeypatch.setattr(timeline_life, "MAX_SPANS", 4)
    house = TimedHouse(num_blocks=8, budget=4)
    for number in range(6):
        house.submit(f"r{number}", prompt(8, number), max_tokens=20)
    house.finish()
    known = [number for number in range(6) if house.engine.timeline(f"r{number}")]
    assert len(known) == 3
    lives = [house.life(f"r{number}") for number in known]
    assert all(len(life.spans) <= 4 for life in lives)
    assert any(life.num_unlisted_spans for life in lives)
    for life in lives:
        assert life.age_s == pytest.approx(sum(life.seconds.values())), "unlisted spans count all the same"


def test_without_recording_there_is_nothing_to_tell():
    house = House()
    house.engine.submit(make_request(prompt(4), "a", max_tokens=1))
    house.run()
    assert house.engine.timeline("a") == []


# -- in sentences ------------------------------------------------------------------------------------


def test_the_story_says_what_took_long_and_who_was_served_meanwhile():
    house = TimedHouse(max_num_seqs=1, budget=8)
    house.submit("first", prompt(12, 1), max_tokens=6)
    house.tick()
    house.submit("second", prompt(12, 2), max_tokens=3)
    house.finish()
    assert tell(house.life("second")) == [
        "second (length) took 10.00 s: 6.00 s (60 %) in the queue, 2.00 s (20 %) computing its prompt and "
        "2.00 s (20 %) generating.",
        "It came when 0 others waited and 1 ran and waited 6.00 s because as many sequences ran as may "
        "(--max-num-seqs) (6.00 s).",
        "Meanwhile 6 steps computed 9 tokens (4 of prompts) for others, most of them for first (9).",
        "Nothing of its 12 prompt tokens was cached.",
        "12 prompt tokens were computed in 2 steps (chunks of 8, 4); that took 2.00 s.",
        "2 further tokens came in 2 steps, one every 1.00 s, beside 0 tokens of others.",
    ]


def test_the_story_of_a_preemption_names_who_needed_the_room():
    house = TimedHouse(num_blocks=8)
    house.submit("first", prompt(8, 1), max_tokens=20)
    house.submit("second", prompt(8, 2), max_tokens=20)
    house.finish()
    story = "\n".join(tell(house.life("second")))
    assert "It had to give its blocks to make room for first's tokens and waited" in story
    assert "of its tokens were computed again in" in story


def test_the_story_of_a_request_that_has_just_come_is_short():
    house = TimedHouse()
    house.submit("a", prompt(4), max_tokens=1)
    assert tell(house.life("a")) == ["a (waiting) has taken 0.0 ms."]
