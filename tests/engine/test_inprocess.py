from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.core.errors import EngineDead, InvalidRequest, Overloaded, RequestFailed
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.engine.inprocess import InProcessClient
from headrace.engine.metrics import Metrics
from tests.engine.conditions import eventually
from tests.fakes_engine import (
    INFO,
    INVALID,
    OVERLOAD,
    STEP_BUG,
    SUBMIT_BUG,
    FakeEngine,
    a_timeline,
    expected_text,
    expected_tokens,
    make_request,
)


@asynccontextmanager
async def running(engine: FakeEngine | None = None) -> AsyncIterator[InProcessClient]:
    client = InProcessClient(FakeEngine() if engine is None else engine, Metrics("m"))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def collect(client: InProcessClient, request: Request) -> list[RequestOutput]:
    return [output async for output in client.generate(request)]


def run(body: Callable[[InProcessClient], Awaitable[None]], engine: FakeEngine | None = None) -> None:
    async def main() -> None:
        async with running(engine) as client:
            await body(client)

    asyncio.run(main())


def test_many_requests_at_once_each_get_their_own_text() -> None:
    async def body(client: InProcessClient) -> None:
        requests = [make_request(f"r{i}", prompt=(i,), max_tokens=20, n=1 + i % 3) for i in range(50)]
        answers = await asyncio.gather(*(collect(client, request) for request in requests))
        for request, outputs in zip(requests, answers, strict=True):
            for index in range(request.sampling.n):
                mine = [output for output in outputs if output.index == index]
                assert "".join(output.text for output in mine) == expected_text(request, index)
                assert [token for output in mine for token in output.token_ids] == expected_tokens(request, index)
                assert [output.finish_reason for output in mine][-1] is FinishReason.LENGTH

    run(body)


def test_a_started_client_is_ready_and_knows_its_engine() -> None:
    async def body(client: InProcessClient) -> None:
        assert client.is_ready
        assert client.info == INFO

    run(body)


def test_one_step_wakes_the_event_loop_once() -> None:
    class Counting(asyncio.SelectorEventLoop):
        num_wakes = 0

        def call_soon_threadsafe(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if threading.current_thread().name == "engine":
                self.num_wakes += 1
            return super().call_soon_threadsafe(*args, **kwargs)

    async def main(engine: FakeEngine) -> None:
        async with running(engine) as client:
            await asyncio.gather(*(collect(client, make_request(f"r{i}", max_tokens=30)) for i in range(20)))

    engine = FakeEngine()
    with asyncio.Runner(loop_factory=Counting) as runner:
        runner.run(main(engine))
        loop = runner.get_loop()
        assert isinstance(loop, Counting)
        assert 0 < loop.num_wakes <= engine.num_steps


@pytest.mark.parametrize(("first", "error_type"), [(INVALID, InvalidRequest), (OVERLOAD, Overloaded)])
def test_a_refused_request_raises_and_the_next_is_served(first: int, error_type: type[Exception]) -> None:
    async def body(client: InProcessClient) -> None:
        with pytest.raises(error_type):
            await collect(client, make_request("bad", prompt=(first,)))
        assert (await collect(client, make_request("good")))[-1].finish_reason is FinishReason.LENGTH

    run(body)


def test_a_request_that_breaks_submit_gets_error_outputs() -> None:
    async def body(client: InProcessClient) -> None:
        outputs = await collect(client, make_request(prompt=(SUBMIT_BUG,), n=2))
        assert [output.finish_reason for output in outputs] == [FinishReason.ERROR] * 2
        assert outputs[0].error is not None
        assert outputs[0].error.kind == RequestFailed.__name__

    run(body)


def test_abort_ends_the_stream_with_an_abort_output() -> None:
    async def body(client: InProcessClient) -> None:
        outputs = client.generate(make_request(max_tokens=1_000_000))
        await anext(outputs)
        await client.abort("r")
        rest = [output async for output in outputs]
        assert rest[-1].finish_reason is FinishReason.ABORT
        await client.abort("r")

    run(body, FakeEngine(step_s=0.001))


def test_two_hundred_streams_closed_at_once_leave_nothing_behind() -> None:
    engine = FakeEngine(step_s=0.001)

    async def body(client: InProcessClient) -> None:
        async def read_one(i: int) -> None:
            async for _ in client.generate(make_request(f"r{i}", max_tokens=1 if i < 20 else 1_000_000)):
                pass

        readers = [asyncio.create_task(read_one(i)) for i in range(200)]
        await eventually(lambda: sum(reader.done() for reader in readers) >= 20)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await eventually(lambda: not engine.has_work)
        assert (await collect(client, make_request("after")))[-1].finish_reason is FinishReason.LENGTH

    run(body, engine)


def test_a_step_that_raises_fails_every_stream_and_the_client_stays_dead() -> None:
    async def body(client: InProcessClient) -> None:
        bystander = asyncio.create_task(collect(client, make_request("bystander", max_tokens=1_000_000)))
        with pytest.raises(EngineDead, match="ZeroDivisionError"):
            await collect(client, make_request("bad", prompt=(STEP_BUG,)))
        with pytest.raises(EngineDead):
            await bystander
        assert not client.is_ready
        with pytest.raises(EngineDead, match="not running"):
            await collect(client, make_request("late"))

    run(body, FakeEngine(step_s=0.001))


def test_closing_fails_open_streams_and_closes_the_engine() -> None:
    async def main() -> None:
        engine = FakeEngine(step_s=0.001)
        async with running(engine) as client:
            outputs = client.generate(make_request(max_tokens=1_000_000))
            await anext(outputs)
        with pytest.raises(EngineDead, match="closed"):
            _ = [output async for output in outputs]
        assert engine.is_closed
        await client.close()

    asyncio.run(main())


def test_a_client_that_was_never_started_refuses_and_closes_its_engine() -> None:
    async def main() -> None:
        engine = FakeEngine()
        client = InProcessClient(engine, Metrics("m"))
        with pytest.raises(EngineDead):
            await collect(client, make_request())
        await client.close()
        assert engine.is_closed

    asyncio.run(main())


def test_a_question_is_answered_between_steps() -> None:
    async def body(client: InProcessClient) -> None:
        stream = client.generate(make_request("r", max_tokens=100_000))
        await anext(stream)
        assert await client.timeline("r") == [a_timeline("r")]
        assert await client.timeline("nobody") == []
        await stream.aclose()

    run(body)


def test_a_question_to_an_engine_that_dies_is_an_error() -> None:
    async def body(client: InProcessClient) -> None:
        with pytest.raises(EngineDead):
            await collect(client, make_request(prompt=(STEP_BUG,)))
        with pytest.raises(EngineDead):
            await client.timeline("r")

    run(body)
