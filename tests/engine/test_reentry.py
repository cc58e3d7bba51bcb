"""Who enters the next engine, when, and who is blamed. No process, no time: engines are lists of what was sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from headrace.core.errors import EngineDead, InvalidRequest, RequestQuarantined
from headrace.core.request import FinishReason, RequestOutput, Usage
from headrace.engine.messages import Abort, Resume, Submit
from headrace.engine.metrics import Metrics
from headrace.engine.reentry import DeathCause, Reentry
from headrace.engine.streams import StreamTable
from tests.engine.conditions import eventually
from tests.fakes import ManualClock
from tests.fakes_engine import make_request

DEATH = EngineDead("the engine died")


class Ward:
    """Streams, the line into the engine, and what the present engine was sent."""

    def __init__(self, max_resumptions: int = 16) -> None:
        self.streams = StreamTable(Metrics("m"), ManualClock())
        self.reentry = Reentry(self.streams, Metrics("m"), max_resumptions)
        self.sent: list[Submit | Resume | Abort] = []
        self.reentry.engine_ready(self.sent.append)

    def read(self, request_id: str, n: int = 1) -> asyncio.Task[list[RequestOutput]]:
        async def reading() -> list[RequestOutput]:
            return [output async for output in self.streams.generate(make_request(request_id, n=n), self.send)]

        return asyncio.create_task(reading())

    def send(self, message: Submit | Abort) -> None:
        if isinstance(message, Submit):
            self.reentry.submit(message.request)
        else:
            self.reentry.advance()

    def deliver(self, request_id: str, index: int = 0, *, is_last: bool = False) -> None:
        reason = FinishReason.STOP if is_last else None
        output = RequestOutput(
            request_id=request_id, index=index, token_ids=(7,), usage=Usage(3, 0, 1), finish_reason=reason
        )
        self.streams.deliver([output])
        self.reentry.advance()

    def restart(self, cause: DeathCause = DeathCause.UNKNOWN) -> None:
        self.reentry.engine_died(DEATH, cause)
        self.sent = []
        self.reentry.engine_ready(self.sent.append)

    @property
    def sent_ids(self) -> list[str]:
        """Ids in the order in which they were sent; ``-a`` is one that had to make way."""
        return [f"-{m.request_id}" if isinstance(m, Abort) else m.request.request_id for m in self.sent]

    def acknowledge_abort(self, request_id: str, index: int = 0) -> None:
        """What the engine sends of a request that it was told to drop."""
        output = RequestOutput(
            request_id=request_id, index=index, usage=Usage(3, 0, 1), finish_reason=FinishReason.ABORT
        )
        self.streams.deliver([output])
        self.reentry.advance()


def ward_test(body: Callable[[Ward], Awaitable[None]], ward: Callable[[], Ward] = Ward) -> None:
    async def main() -> None:
        await body(ward())

    asyncio.run(main())


async def open_streams(ward: Ward, *request_ids: str) -> list[asyncio.Task[list[RequestOutput]]]:
    tasks = [ward.read(request_id) for request_id in request_ids]
    await eventually(lambda: len(ward.streams) >= len(request_ids))
    return tasks


async def leave(ward: Ward, reader: asyncio.Task[list[RequestOutput]], num_left: int) -> None:
    reader.cancel()
    await eventually(lambda: len(ward.streams) == num_left)


def test_those_in_flight_are_tried_alone_one_after_another_and_then_all_enter_with_their_tokens() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "a", "b", "c")
        assert [type(message) for message in ward.sent] == [Submit] * 3
        ward.deliver("b")
        ward.deliver("b")
        ward.restart()
        assert ward.sent_ids == ["a"]
        ward.deliver("a")
        assert ward.sent_ids == ["a", "-a"]
        ward.deliver("a")  # computed before it was dropped: stale, and computed again later
        ward.acknowledge_abort("a")
        assert ward.sent_ids == ["a", "-a", "b"]
        ward.deliver("b", is_last=True)
        assert ward.sent_ids == ["a", "-a", "b", "c"]
        ward.deliver("c")
        assert ward.sent_ids == ["a", "-a", "b", "c", "a"]
        last = ward.sent[-1]
        assert isinstance(last, Resume)
        assert last.progress[0].token_ids == [7]
        for request_id in ("a", "c"):
            ward.deliver(request_id, is_last=True)
        answers = await asyncio.gather(*readers)
        assert [sum(len(output.token_ids) for output in outputs) for outputs in answers] == [2, 3, 2]

    ward_test(body)


def test_newcomers_wait_until_all_are_back() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "a", "b")
        ward.restart()
        readers += await open_streams(ward, "new", "newer", "gone")
        readers[-1].cancel()
        await eventually(lambda: len(ward.streams) == 4)
        ward.deliver("a")
        ward.acknowledge_abort("a")
        assert ward.sent_ids == ["a", "-a", "b"]
        ward.deliver("b")
        assert ward.sent_ids == ["a", "-a", "b", "a", "new", "newer"]
        assert isinstance(ward.sent[-2], Submit)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    ward_test(body)


def test_the_one_on_trial_when_the_engine_dies_again_is_quarantined_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "a", "guilty", "c")
        ward.restart()
        ward.deliver("a")
        ward.acknowledge_abort("a")
        with caplog.at_level(logging.ERROR):
            ward.restart()
        assert "request guilty ended the engine process again" in caplog.text
        with pytest.raises(RequestQuarantined, match="more than once"):
            await readers[1]
        assert ward.sent_ids == ["a"]
        ward.deliver("a", is_last=True)
        ward.deliver("c", is_last=True)
        await asyncio.gather(readers[0], readers[2])

    ward_test(body)


def test_a_death_from_outside_puts_the_one_on_trial_first_and_only_another_one_ends_it() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "a", "b", "c")
        ward.restart(DeathCause.OUTSIDE)
        ward.deliver("a")
        ward.acknowledge_abort("a")
        ward.restart(DeathCause.OUTSIDE)
        assert ward.sent_ids == ["b"], "in the engine when it died, and not seen to move"
        ward.deliver("b")
        ward.acknowledge_abort("b")
        assert ward.sent_ids == ["b", "-b", "a"]
        ward.restart(DeathCause.OUTSIDE)
        ward.restart(DeathCause.OUTSIDE)
        with pytest.raises(RequestQuarantined):
            await readers[0]
        assert ward.sent_ids == ["b"]
        for request_id in ("b", "c"):
            ward.deliver(request_id, is_last=True)
        await asyncio.gather(*readers[1:])

    ward_test(body)


def test_one_that_went_on_is_not_blamed_for_a_later_death() -> None:
    async def body(ward: Ward) -> None:
        (reader,) = await open_streams(ward, "a")
        for _ in range(5):
            ward.restart()
            ward.deliver("a")
        ward.deliver("a", is_last=True)
        await reader

    ward_test(body)


def test_all_answers_of_a_request_must_have_moved_before_the_next_enters() -> None:
    async def body(ward: Ward) -> None:
        readers = [ward.read("pair", n=2), ward.read("b")]
        await eventually(lambda: len(ward.streams) == 2)
        ward.restart()
        ward.deliver("pair", 0)
        assert ward.sent_ids == ["pair"]
        ward.deliver("pair", 1, is_last=True)
        ward.acknowledge_abort("pair", 0)
        assert ward.sent_ids == ["pair", "-pair", "b"]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    ward_test(body)


def test_one_that_leaves_or_is_refused_on_trial_makes_room_for_the_next() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "leaves", "refused", "c")
        ward.restart()
        await leave(ward, readers[0], num_left=2)
        assert ward.sent_ids == ["leaves"], "the engine may still be computing it"
        ward.acknowledge_abort("leaves")
        assert ward.sent_ids == ["leaves", "refused"]
        ward.streams.refuse("refused", InvalidRequest("too long"))
        ward.reentry.advance()
        assert ward.sent_ids == ["leaves", "refused", "c"]
        ward.deliver("c", is_last=True)
        await readers[2]
        with pytest.raises(InvalidRequest):
            await readers[1]

    ward_test(body)


def test_one_that_left_on_trial_and_ends_the_engine_after_all_is_nobody_elses_fault() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "guilty", "innocent")
        ward.restart()
        await leave(ward, readers[0], num_left=1)
        ward.restart()  # of the step that was running when its client left
        assert ward.sent_ids == ["innocent"]
        ward.deliver("innocent", is_last=True)
        await readers[1]

    ward_test(body)


def test_one_that_passed_and_left_before_it_had_made_way_is_waited_for_too() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "guilty", "innocent")
        ward.restart()
        ward.deliver("guilty")
        assert ward.sent_ids == ["guilty", "-guilty"]
        await leave(ward, readers[0], num_left=1)
        assert ward.sent_ids == ["guilty", "-guilty"]
        ward.restart()  # of its second step, which the engine began before it was told to drop it
        assert ward.sent_ids == ["innocent"]
        ward.deliver("innocent", is_last=True)
        await readers[1]

    ward_test(body)


def test_a_refusal_ends_the_trial_of_one_that_left() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "leaves", "stays")
        ward.restart()
        await leave(ward, readers[0], num_left=1)
        ward.streams.refuse("leaves", InvalidRequest("too long"))
        ward.reentry.advance()
        assert ward.sent_ids == ["leaves", "stays"]
        ward.deliver("stays", is_last=True)
        await readers[1]

    ward_test(body)


def test_an_engine_that_dies_before_it_is_ready_blames_nobody() -> None:
    async def body(ward: Ward) -> None:
        readers = await open_streams(ward, "a", "b")
        for _ in range(3):
            ward.reentry.engine_died(DEATH, DeathCause.UNKNOWN)
        ward.restart()
        assert ward.sent_ids == ["a"]
        ward.deliver("a", is_last=True)
        ward.deliver("b", is_last=True)
        await asyncio.gather(*readers)

    ward_test(body)


def test_one_that_outlived_as_many_engines_as_it_may_ends_with_the_engine() -> None:
    async def body(ward: Ward) -> None:
        (reader,) = await open_streams(ward, "a")
        ward.restart()
        ward.deliver("a")
        ward.restart()
        ward.deliver("a")
        ward.restart()
        with pytest.raises(EngineDead, match="died"):
            await reader
        assert ward.sent == []

    ward_test(body, lambda: Ward(max_resumptions=2))
