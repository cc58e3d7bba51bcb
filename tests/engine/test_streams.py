from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.request import FinishReason, Request, RequestOutput, TokenLogprobs, Usage
from headrace.engine.messages import Abort, Submit
from headrace.engine.metrics import Metrics
from headrace.engine.streams import StreamTable, merge_outputs
from tests.engine.conditions import eventually
from tests.fakes import ManualClock
from tests.fakes_engine import INFO, make_request


class Wire:
    """What a table sent to its engine."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[Submit | Abort] = []
        self.error = error

    def __call__(self, message: Submit | Abort) -> None:
        if self.error is not None and isinstance(message, Submit):
            raise self.error
        self.sent.append(message)


def delta(token: int, *, request_id: str = "r", index: int = 0, last: bool = False) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        index=index,
        text=f"{token} ",
        token_ids=(token,),
        logprobs=(TokenLogprobs(token, -1.0, 1),),
        usage=Usage(3, 0, token),
        finish_reason=FinishReason.STOP if last else None,
        stop_reason="x" if last else None,
    )


def new_table() -> StreamTable:
    return StreamTable(Metrics("m"), ManualClock())


async def started(table: StreamTable, request: Request, wire: Wire) -> asyncio.Task[list[RequestOutput]]:
    """A reader that has submitted its request and waits for outputs."""

    async def read() -> list[RequestOutput]:
        return [output async for output in table.generate(request, wire)]

    task = asyncio.create_task(read())
    await eventually(lambda: bool(wire.sent))
    return task


@given(st.lists(st.text(max_size=3), min_size=1, max_size=9))
def test_merged_outputs_concatenate_deltas_and_keep_the_last_state(texts: list[str]) -> None:
    outputs = [
        RequestOutput(
            request_id="r",
            text=text,
            token_ids=(i, i + 1),
            logprobs=(TokenLogprobs(i, -0.5, 1),),
            prompt_logprobs=(None,) if i == 0 else (),
            usage=Usage(1, 0, 2 * i),
            finish_reason=FinishReason.STOP if i == len(texts) - 1 else None,
        )
        for i, text in enumerate(texts)
    ]
    merged = merge_outputs(outputs)
    assert merged.text == "".join(texts)
    assert merged.token_ids == tuple(token for i in range(len(texts)) for token in (i, i + 1))
    assert len(merged.logprobs) == len(texts)
    assert merged.prompt_logprobs == (None,)
    assert merged.usage == outputs[-1].usage
    assert merged.finish_reason is FinishReason.STOP


def test_a_reader_gets_its_own_outputs_and_ends_after_the_last_sequence() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        reading = await started(table, make_request(n=2), wire)
        table.deliver([delta(1), delta(5, request_id="other"), delta(2, index=1, last=True)])
        table.deliver([delta(3, last=True)])
        outputs = await reading
        assert {(output.index, token) for output in outputs for token in output.token_ids} == {(0, 1), (1, 2), (0, 3)}
        assert len(table) == 0
        assert len(wire.sent) == 1

    asyncio.run(run())


def test_what_a_slow_reader_leaves_unread_is_merged_and_nothing_is_lost() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        outputs = table.generate(make_request(n=2, max_tokens=10_000), wire)
        first = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)
        for token in range(5_000):
            table.deliver([delta(token, last=token == 4_999), delta(token, index=1, last=token == 4_999)])
        rest = [await first, *[output async for output in outputs]]
        assert len(rest) == 2
        for output in rest:
            assert output.token_ids == tuple(range(5_000))
            assert output.text == "".join(f"{token} " for token in range(5_000))
            assert len(output.logprobs) == 5_000
            assert output.finish_reason is FinishReason.STOP

    asyncio.run(run())


def test_leaving_early_aborts_and_a_finished_request_is_not_aborted() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        async with aclosing(table.generate(make_request("left"), wire)) as outputs:
            reading = asyncio.ensure_future(anext(outputs))
            await asyncio.sleep(0)
            table.deliver([delta(1, request_id="left")])
            await reading
        assert wire.sent[-1] == Abort("left")
        table.deliver([delta(2, request_id="left", last=True)])  # what was on its way is ignored

        reading_all = await started(table, make_request("done"), other := Wire())
        table.deliver([delta(1, request_id="done", last=True)])
        await reading_all
        assert len(other.sent) == 1

    asyncio.run(run())


def test_cancelling_the_reader_aborts_the_request() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        reading = await started(table, make_request(), wire)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert wire.sent[-1] == Abort("r")
        assert len(table) == 0

    asyncio.run(run())


def test_an_error_reaches_the_reader_after_the_outputs_that_came_before_it() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        outputs = table.generate(make_request(), wire)
        reading = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)
        table.deliver([delta(1)])
        assert (await reading).token_ids == (1,)
        table.deliver([delta(2)])
        table.fail_all(EngineDead("gone"))
        assert (await anext(outputs)).token_ids == (2,)
        with pytest.raises(EngineDead, match="gone"):
            await anext(outputs)
        assert len(wire.sent) == 1

    asyncio.run(run())


def test_a_refused_request_raises_what_the_engine_said() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        reading = await started(table, make_request(), wire)
        table.refuse("r", InvalidRequest("too long", "prompt"))
        with pytest.raises(InvalidRequest, match="too long"):
            await reading
        table.refuse("r", InvalidRequest("too long", "prompt"))

    asyncio.run(run())


def test_a_request_that_cannot_be_sent_leaves_no_stream() -> None:
    async def run() -> None:
        table = new_table()
        with pytest.raises(Overloaded):
            await anext(table.generate(make_request(), Wire(Overloaded("full", 1.0))))
        assert len(table) == 0

    asyncio.run(run())


def test_a_second_request_under_a_running_id_is_refused_and_the_first_goes_on() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        reading = await started(table, make_request(), wire)
        with pytest.raises(InvalidRequest, match="'r' is running"):
            await anext(table.generate(make_request(), wire))
        table.deliver([delta(1, last=True)])
        assert len(await reading) == 1

    asyncio.run(run())


def test_beyond_what_may_run_and_wait_requests_are_refused_at_once_and_n_counts() -> None:
    async def run() -> None:
        table, wire = new_table(), Wire()
        table.admit_for(msgspec.structs.replace(INFO, max_num_seqs=2, max_num_queued_reqs=8))
        readers = [await started(table, make_request(f"r{i}", n=4), Wire()) for i in range(2)]
        readers += [await started(table, make_request(f"s{i}"), Wire()) for i in range(2)]
        for i in range(40):
            with pytest.raises(Overloaded, match="10 sequences run or wait and at most 10 may"):
                await anext(table.generate(make_request(f"t{i}"), wire))
        assert wire.sent == []
        table.deliver([delta(1, request_id="r0", index=index, last=True) for index in range(3)])
        with pytest.raises(Overloaded):
            await anext(table.generate(make_request("four", n=4), wire))
        readers.append(await started(table, make_request("three", n=3), wire))
        table.fail_all(EngineDead("over"))
        await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(run())
