"""The engine over a fake executor: one last output per sequence, whatever happens to it."""

from __future__ import annotations

import logging

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.request import FinishReason
from headrace.core.sampling import SamplingParams
from headrace.engine.text_stream import TextDelta, TextStream
from tests.engine.house import VOCAB_SIZE, ByteTexts, House, joined, text_of
from tests.fakes import ContentExecutor, expected_output, make_request


def test_deltas_add_up_to_the_whole_answer():
    house = House()
    house.engine.submit(make_request([1, 2, 3], max_tokens=12, ignore_eos=True))
    text, token_ids, last = joined(house.run())
    assert token_ids == expected_output([1, 2, 3], 12, VOCAB_SIZE)
    assert text == text_of(token_ids)
    assert last.finish_reason is FinishReason.LENGTH
    assert (last.usage.num_prompt_tokens, last.usage.num_output_tokens) == (3, 12)


def test_the_last_output_carries_the_times():
    house = House()
    house.clock.advance(5.0)
    house.engine.submit(make_request([1, 2, 3], arrival_time=4.0, max_tokens=2, ignore_eos=True))
    _, _, last = joined(house.run())
    assert last.times is not None
    assert (last.times.arrival, last.times.first_scheduled, last.times.first_token) == (4.0, 5.5, 5.5)
    assert last.times.finished == 6.0


def test_n_sequences_of_a_request_end_each_for_itself_and_share_the_prompt():
    house = House()
    prompt = list(range(1, 13))
    house.engine.submit(make_request(prompt, n=3, max_tokens=4, ignore_eos=True))
    outputs = house.run()
    lasts = [joined(outputs, index=i)[2] for i in range(3)]
    assert [last.usage.num_cached_tokens for last in lasts] == [0, 11, 11]


def test_a_stop_string_ends_the_sequence_before_its_text():
    house = House()
    answer = text_of(expected_output([1, 2, 3], 20, VOCAB_SIZE))
    stop = answer[5:8]
    house.engine.submit(make_request([1, 2, 3], max_tokens=20, ignore_eos=True, stop=(stop,)))
    text, _, last = joined(house.run())
    assert text == answer[: answer.index(stop)]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)
    assert house.kv.num_private_blocks == 0


def test_a_stop_string_completed_by_the_last_allowed_token_is_the_reason():
    house = House()
    answer = text_of(expected_output([1, 2, 3], 8, VOCAB_SIZE))
    house.engine.submit(make_request([1, 2, 3], max_tokens=8, ignore_eos=True, stop=(answer[6:8],)))
    text, _, last = joined(house.run())
    assert text == answer[:6]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, answer[6:8])


@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_stop_token_shows_only_when_asked(include):
    house = House()
    answer = expected_output([1, 2, 3], 8, VOCAB_SIZE)
    stop_id = answer[5]
    end = answer.index(stop_id)
    house.engine.submit(
        make_request(
            [1, 2, 3],
            max_tokens=8,
            ignore_eos=True,
            stop_token_ids=(stop_id,),
            include_stop_str_in_output=include,
        )
    )
    text, token_ids, last = joined(house.run())
    assert token_ids == answer[: end + 1]
    assert text == text_of(answer[: end + include])
    assert last.stop_reason == stop_id


def test_held_back_text_is_flushed_with_the_last_output():
    house = House()
    answer = text_of(expected_output([1, 2, 3], 8, VOCAB_SIZE))
    house.engine.submit(make_request([1, 2, 3], max_tokens=8, ignore_eos=True, stop=(answer[7] + "~",)))
    text, _, last = joined(house.run())
    assert text == answer
    assert last.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("steps", range(6))
def test_an_aborted_request_ends_once_and_frees_its_blocks_at_once(steps):
    house = House(budget=8)
    house.engine.submit(make_request(list(range(20)), n=2, max_tokens=10, ignore_eos=True))
    outputs = [o for _ in range(steps) for o in house.engine.step()]
    house.engine.abort("r")
    assert house.kv.num_private_blocks == 0
    house.engine.abort("r")
    outputs += house.run()
    for index in range(2):
        assert joined(outputs, index=index)[2].finish_reason is FinishReason.ABORT


def test_aborting_an_unknown_request_does_nothing():
    house = House()
    house.engine.abort("nobody")
    assert not house.engine.has_work


def test_a_request_larger_than_the_pool_is_refused_with_both_numbers():
    house = House(num_blocks=4, block_size=4)
    with pytest.raises(InvalidRequest, match=r"prompt 10 \+ max_tokens 7 = 17 tokens, but the KV cache holds 16"):
        house.engine.submit(make_request(list(range(10)), max_tokens=7))
    assert not house.engine.has_work


def test_a_second_live_request_with_the_same_id_is_refused():
    house = House()
    house.engine.submit(make_request([1, 2], max_tokens=2))
    with pytest.raises(InvalidRequest, match="already running"):
        house.engine.submit(make_request([3, 4], max_tokens=2))
    house.run()
    house.engine.submit(make_request([3, 4], max_tokens=2))
    house.run()


def test_unusable_logits_fail_their_own_sequence_only():
    house = House()
    house.engine.submit(make_request([1, 2, 3], "good", max_tokens=6, ignore_eos=True))
    house.engine.submit(make_request([4, 5, 6], "bad", max_tokens=6, ignore_eos=True))
    house.executor.fail_seq_ids.add(1)
    outputs = house.run()
    bad = joined(outputs, "bad")[2]
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error is not None
    assert "not finite" in bad.error.message
    assert joined(outputs, "good")[1] == expected_output([1, 2, 3], 6, VOCAB_SIZE)


class BreakingExecutor(ContentExecutor):
    """Raises in the next ``num_failures`` steps."""

    num_failures = 0

    def execute(self, plan, token_mask):
        if self.num_failures > 0:
            self.num_failures -= 1
            raise RuntimeError("out of memory")
        return super().execute(plan, token_mask)


def test_a_failed_step_costs_its_own_requests_and_the_next_one_runs(caplog):
    house = House()
    house.engine._executor = broken = BreakingExecutor(32, 4, VOCAB_SIZE)
    broken.num_failures = 1
    house.engine.submit(make_request([1, 2, 3], "first", max_tokens=6, ignore_eos=True))
    outputs = house.run()
    assert joined(outputs, "first")[2].finish_reason is FinishReason.ERROR
    assert "failed in the executor" in caplog.text
    house.engine.submit(make_request([1, 2, 3], "second", max_tokens=6, ignore_eos=True))
    assert joined(house.run(), "second")[1] == expected_output([1, 2, 3], 6, VOCAB_SIZE)


def test_an_executor_that_keeps_failing_ends_the_engine():
    house = House()
    house.engine._executor = broken = BreakingExecutor(32, 4, VOCAB_SIZE)
    broken.num_failures = 99
    for number in range(2):
        house.engine.submit(make_request([1, 2, 3], str(number), max_tokens=6))
        house.run()
    house.engine.submit(make_request([1, 2, 3], "last", max_tokens=6))
    with pytest.raises(RuntimeError, match="out of memory"):
        house.engine.step()


def test_a_lost_block_is_reported_and_mended_when_the_engine_is_idle(caplog):
    house = House()
    house.engine.submit(make_request([1, 2, 3], max_tokens=2))
    house.kv._pool.allocate(1)
    with caplog.at_level(logging.ERROR):
        house.run()
    assert "repaired" in caplog.text
    assert house.kv.check() == []


def test_stats_count_what_happened():
    house = House(num_blocks=8)
    for number in range(2):
        prompt = [number * 20 + i for i in range(8)]
        house.engine.submit(
            make_request(prompt, str(number), arrival_time=float(number), max_tokens=20, ignore_eos=True)
        )
    house.engine.step()
    stats = house.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_step_tokens) == (2, 0, 16)
    house.run()
    stats = house.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_preemptions > 0
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


def test_a_step_that_computes_nothing_counts_no_tokens():
    house = House()
    house.engine.submit(make_request([1, 2, 3], max_tokens=5, ignore_eos=True))
    house.engine.step()
    assert house.engine.stats().num_step_tokens == 3
    house.engine.abort("r")
    house.engine.step()
    assert house.engine.stats().num_step_tokens == 0


class OddTexts(ByteTexts):
    """Cannot make text of one token."""

    def __init__(self, odd_token_id: int) -> None:
        self._odd_token_id = odd_token_id

    def text_streams(self, sampling: SamplingParams) -> list[TextStream]:
        streams = super().text_streams(sampling)
        return [OddStream(stream, self._odd_token_id) for stream in streams]


class OddStream(TextStream):
    def __init__(self, stream: TextStream, odd_token_id: int) -> None:
        self._stream = stream
        self._odd_token_id = odd_token_id

    def push(self, token_id: int) -> TextDelta:
        if token_id == self._odd_token_id:
            raise MemoryError
        return self._stream.push(token_id)

    def finish(self) -> str:
        return self._stream.finish()


def test_a_token_that_cannot_be_taken_in_fails_its_sequence_alone(caplog: pytest.LogCaptureFixture):
    good, bad = [1, 2, 3], [4, 5, 6]
    odd = next(t for t in expected_output(bad, 6, VOCAB_SIZE) if t not in expected_output(good, 6, VOCAB_SIZE))
    house = House(texts=OddTexts(odd))
    for request_id, prompt in (("good", good), ("bad", bad)):
        house.engine.submit(make_request(prompt, request_id, max_tokens=6, ignore_eos=True))
    outputs = house.run()
    assert joined(outputs, "good")[1] == expected_output(good, 6, VOCAB_SIZE)
    last = joined(outputs, "bad")[2]
    assert last.error is not None
    assert (last.finish_reason, last.error.kind) == (FinishReason.ERROR, "RequestFailed")
    assert "MemoryError" in last.error.message
    assert "request bad could not be taken in" in caplog.text
    assert house.kv.num_private_blocks == 0
