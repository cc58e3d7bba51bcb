from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest
import uvloop

from headrace.core.errors import ConfigError, EngineDead, InvalidRequest, Overloaded
from headrace.core.progress import ProgressUnit
from headrace.core.request import FinishReason, RequestOutput
from headrace.engine.supervisor import SupervisorLimits
from tests.engine.conditions import eventually, is_running
from tests.engine.supervised import collect, new_supervisor, pid_of, supervised
from tests.fakes_engine import (
    INFO,
    INVALID,
    OVERLOAD,
    SUBMIT_BUG,
    a_timeline,
    expected_text,
    expected_tokens,
    make_request,
)


class ShownProgress:
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        self.events.append((label, total, unit))

    def advance(self, amount: int) -> None:
        self.events.append((amount,))

    def finish(self) -> None:
        self.events.append(("finish",))


def test_start_shows_progress_and_ends_with_an_engine_that_is_ready() -> None:
    async def main() -> None:
        supervisor, progress = new_supervisor(), ShownProgress()
        assert not supervisor.is_ready
        with pytest.raises(EngineDead, match="not started"):
            _ = supervisor.info
        await supervisor.start(progress)
        assert supervisor.is_ready
        assert supervisor.info == INFO
        assert progress.events[0] == ("weights", 3, "tensors")
        assert progress.events[-1] == ("finish",)
        assert sum(event[0] for event in progress.events if isinstance(event[0], int)) == 3
        await supervisor.close()

    asyncio.run(main())


def test_requests_of_one_moment_reach_the_engine_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = asyncio.StreamWriter.write

    def seen_write(writer: asyncio.StreamWriter, data: bytes) -> None:
        written.append(data)
        write(writer, data)

    async def main() -> None:
        async with supervised() as supervisor:
            monkeypatch.setattr(asyncio.StreamWriter, "write", seen_write)
            requests = [make_request(f"request-{i}", prompt=(i,), max_tokens=2) for i in range(5)]
            await asyncio.gather(*(collect(supervisor, request) for request in requests))

    asyncio.run(main())
    assert max(data.count(b"request-") for data in written) == 5


def test_many_requests_at_once_each_get_their_own_text() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            requests = [make_request(f"r{i}", prompt=(i,), max_tokens=20, n=1 + i % 3) for i in range(40)]
            answers = await asyncio.gather(*(collect(supervisor, request) for request in requests))
            for request, outputs in zip(requests, answers, strict=True):
                for index in range(request.sampling.n):
                    mine = [output for output in outputs if output.index == index]
                    assert "".join(output.text for output in mine) == expected_text(request, index)
                    assert [output.finish_reason for output in mine][-1] is FinishReason.LENGTH
            assert supervisor.num_open_streams == 0
            assert supervisor.last_stats is not None

    asyncio.run(main())


@pytest.mark.parametrize(("first", "error_type"), [(INVALID, InvalidRequest), (OVERLOAD, Overloaded)])
def test_a_refused_request_raises_the_engines_own_error(first: int, error_type: type[Exception]) -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            with pytest.raises(error_type):
                await collect(supervisor, make_request("bad", prompt=(first,)))
            assert (await collect(supervisor, make_request("good")))[-1].finish_reason is FinishReason.LENGTH

    asyncio.run(main())


def test_a_request_that_breaks_submit_fails_alone() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            outputs = await collect(supervisor, make_request("bad", prompt=(SUBMIT_BUG,)))
            assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]
            assert (await collect(supervisor, make_request("good")))[-1].finish_reason is FinishReason.LENGTH
            assert supervisor.num_restarts == 0

    asyncio.run(main())


def test_text_that_is_not_unicode_is_an_invalid_request() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            with pytest.raises(InvalidRequest, match="Unicode"):
                await collect(supervisor, make_request("\ud83d"))
            assert supervisor.num_open_streams == 0

    asyncio.run(main())


def test_abort_ends_the_stream_and_frees_the_engine() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            outputs = supervisor.generate(make_request(max_tokens=1_000_000))
            await anext(outputs)
            await supervisor.abort("r")
            rest = [output async for output in outputs]
            assert rest[-1].finish_reason is FinishReason.ABORT
            await supervisor.abort("r")
            await supervisor.abort("nobody")
            assert supervisor.last_stats is not None
            assert supervisor.last_stats.num_running == 0

    asyncio.run(main())


def test_two_hundred_streams_closed_at_once_leave_nothing_behind() -> None:
    async def main() -> None:
        async with supervised() as supervisor:

            async def read(i: int) -> None:
                async for _ in supervisor.generate(make_request(f"r{i}", max_tokens=1 if i < 20 else 1_000_000)):
                    pass

            readers = [asyncio.create_task(read(i)) for i in range(200)]
            await eventually(lambda: sum(reader.done() for reader in readers) >= 20)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            assert supervisor.num_open_streams == 0
            await eventually(lambda: supervisor.last_stats is not None and supervisor.last_stats.num_running == 0)
            assert (await collect(supervisor, make_request("after")))[-1].finish_reason is FinishReason.LENGTH
            assert supervisor.num_restarts == 0

    asyncio.run(main())


def test_a_slow_reader_loses_nothing_and_does_not_delay_another_stream() -> None:
    async def main() -> None:
        async with supervised("fast") as supervisor:
            slow_request = make_request("slow", max_tokens=20_000)
            slow = supervisor.generate(slow_request)
            parts: list[RequestOutput] = [await anext(slow)]
            for i in range(5):
                quick = await collect(supervisor, make_request(f"quick{i}", max_tokens=50))
                assert sum(len(output.token_ids) for output in quick) == 50
            await eventually(lambda: supervisor.num_open_streams == 0)
            parts += [output async for output in slow]
            assert [token for part in parts for token in part.token_ids] == expected_tokens(slow_request)
            assert len(parts) <= 3

    asyncio.run(main())


def test_no_socket_folder_remains_while_serving_or_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main() -> None:
        async with supervised():
            assert os.listdir(tmp_path) == []

    asyncio.run(main())
    assert os.listdir(tmp_path) == []


def test_close_lets_running_streams_finish_and_takes_no_new_ones() -> None:
    async def main() -> None:
        supervisor = new_supervisor()
        await supervisor.start()
        pid = pid_of(supervisor)
        request = make_request(max_tokens=100)
        outputs = supervisor.generate(request)
        first = await anext(outputs)
        closing = asyncio.create_task(supervisor.close(drain_timeout_s=30.0))
        await eventually(lambda: not supervisor.is_ready)
        with pytest.raises(Overloaded, match="shutting down"):
            await collect(supervisor, make_request("late"))
        rest = [output async for output in outputs]
        assert [token for output in (first, *rest) for token in output.token_ids] == expected_tokens(request)
        await closing
        assert not is_running(pid)

    asyncio.run(main())


def test_what_is_not_finished_when_draining_ends_fails() -> None:
    async def main() -> None:
        supervisor = new_supervisor()
        await supervisor.start()
        outputs = supervisor.generate(make_request(max_tokens=1_000_000))
        await anext(outputs)
        await supervisor.close(drain_timeout_s=0.05)
        with pytest.raises(EngineDead, match="shutting down"):
            _ = [output async for output in outputs]

    asyncio.run(main())


def test_closing_again_cuts_draining_short() -> None:
    async def main() -> None:
        supervisor = new_supervisor()
        await supervisor.start()
        pid = pid_of(supervisor)
        reading = asyncio.create_task(collect(supervisor, make_request(max_tokens=1_000_000)))
        await eventually(lambda: supervisor.num_open_streams == 1)
        closing = asyncio.create_task(supervisor.close(drain_timeout_s=3600.0))
        await eventually(lambda: not supervisor.is_ready)
        await supervisor.close()
        await closing
        with pytest.raises(EngineDead):
            await reading
        assert not is_running(pid)

    asyncio.run(main())


def test_a_config_error_of_the_child_is_raised_by_start_in_its_own_words() -> None:
    async def main() -> None:
        supervisor = new_supervisor("config-error")
        with pytest.raises(ConfigError, match="no such model: config-error") as caught:
            await supervisor.start()
        assert caught.value.field == "model"
        assert supervisor.engine_pid is None

    asyncio.run(main())


def test_a_program_that_does_not_exist_is_told_by_start() -> None:
    async def main() -> None:
        with pytest.raises(EngineDead, match="no-such-program"):
            await new_supervisor(command=("/no-such-program",)).start()

    asyncio.run(main())


def test_a_bug_in_loading_is_raised_by_start_with_its_text() -> None:
    async def main() -> None:
        with pytest.raises(EngineDead, match="ZeroDivisionError: a bug in loading"):
            await new_supervisor("bug").start()

    asyncio.run(main())


def test_a_child_that_keeps_dying_without_a_word_is_given_up() -> None:
    async def main() -> None:
        supervisor = new_supervisor("killed-while-loading")
        with pytest.raises(EngineDead, match="died 3 times"):
            await supervisor.start()
        assert supervisor.engine_pid is None

    asyncio.run(main())


def test_a_start_that_is_cancelled_leaves_no_child() -> None:
    async def main() -> None:
        supervisor = new_supervisor("endless-loading")
        starting = asyncio.create_task(supervisor.start())
        await eventually(lambda: supervisor.engine_pid is not None)
        pid = pid_of(supervisor)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not is_running(pid)

    asyncio.run(main())


def test_restart_delays_grow_to_the_last_and_stay_there() -> None:
    limits = SupervisorLimits()
    delays = [limits.restart_delay_s(short_lives) for short_lives in range(12)]
    assert delays == [0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_a_supervisor_works_on_uvloop_too() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            first_pid = pid_of(supervisor)
            assert (await collect(supervisor, make_request()))[-1].finish_reason is FinishReason.LENGTH
            os.kill(first_pid, signal.SIGKILL)
            await eventually(lambda: supervisor.num_restarts == 1 and supervisor.is_ready)
            assert (await collect(supervisor, make_request()))[-1].finish_reason is FinishReason.LENGTH

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_timeline_comes_across_the_process_boundary() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            stream = supervisor.generate(make_request("r", max_tokens=100_000))
            await anext(stream)
            answers = await asyncio.gather(supervisor.timeline("r"), supervisor.timeline("nobody"))
            assert answers == [[a_timeline("r")], []]
            await stream.aclose()

    asyncio.run(main())


def test_a_question_to_an_engine_that_is_killed_raises() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            os.kill(pid_of(supervisor), signal.SIGSTOP)
            asking = asyncio.create_task(supervisor.timeline("r"))
            await asyncio.sleep(0)
            os.kill(pid_of(supervisor), signal.SIGKILL)
            with pytest.raises(EngineDead):
                await asking

    asyncio.run(main())
