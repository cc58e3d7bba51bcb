"""What the supervisor must survive: the real signals, sent to a real process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.core.errors import EngineDead, RequestQuarantined
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.engine.supervisor import SupervisorLimits
from tests.engine.conditions import eventually, eventually_sync, is_running
from tests.engine.supervised import collect, new_supervisor, pid_of, supervised
from tests.fakes_engine import STEP_BUG, STEP_HANG, expected_text, expected_tokens, make_request

ENDLESS = 1_000_000
WATCHFUL = SupervisorLimits(
    ping_interval_s=0.02, silence_limit_s=0.3, hang_limit_s=0.6, restart_delays_s=(0.0,), stop_grace_s=0.1
)


def check_whole(request: Request, outputs: list[RequestOutput]) -> None:
    """Every token and character once, in order, and one end for each sequence."""
    for index in range(request.sampling.n):
        mine = [output for output in outputs if output.index == index]
        assert [token for output in mine for token in output.token_ids] == expected_tokens(request, index)
        assert "".join(output.text for output in mine) == expected_text(request, index)
        assert [output.finish_reason for output in mine if output.finish_reason is not None] == [FinishReason.LENGTH]


def test_a_killed_engine_is_not_ready_at_once_and_its_streams_end_as_if_nothing_had_been() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            requests = [make_request(f"r{i}", prompt=(i,), max_tokens=300, n=1 + i % 2) for i in range(4)]
            readers = [asyncio.create_task(collect(supervisor, request)) for request in requests]
            await eventually(lambda: supervisor.last_stats is not None and supervisor.last_stats.num_running == 6)
            first_pid = pid_of(supervisor)
            os.kill(first_pid, signal.SIGKILL)
            assert await eventually(lambda: not supervisor.is_ready, within_s=1.0) < 1.0
            for request, outputs in zip(requests, await asyncio.gather(*readers), strict=True):
                check_whole(request, outputs)
            assert supervisor.num_restarts == 1
            assert pid_of(supervisor) != first_pid

    asyncio.run(main())


def test_a_stream_whose_engine_is_killed_again_and_again_loses_and_repeats_nothing() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            request = make_request(max_tokens=200)
            outputs = []
            async for output in supervisor.generate(request):
                outputs.append(output)
                if len(outputs) in (1, 20, 70, 71, 150) and supervisor.is_ready:
                    os.kill(pid_of(supervisor), signal.SIGKILL)
            check_whole(request, outputs)
            assert supervisor.num_restarts >= 3

    asyncio.run(main())


def test_a_request_that_may_not_be_resumed_ends_with_a_typed_error_at_once() -> None:
    async def main() -> None:
        limits = SupervisorLimits(restart_delays_s=(0.0,), max_resumptions=0)
        async with supervised(limits=limits) as supervisor:
            outputs = supervisor.generate(make_request(max_tokens=ENDLESS))
            await anext(outputs)
            killed_at = time.monotonic()
            os.kill(pid_of(supervisor), signal.SIGKILL)
            with pytest.raises(EngineDead, match="try again"):
                _ = [output async for output in outputs]
            assert time.monotonic() - killed_at < 2.0

    asyncio.run(main())


def test_a_client_that_leaves_while_the_engine_is_away_is_not_resumed() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            reading = asyncio.create_task(collect(supervisor, make_request(max_tokens=ENDLESS)))
            await eventually(lambda: supervisor.num_open_streams == 1)
            os.kill(pid_of(supervisor), signal.SIGKILL)
            await eventually(lambda: not supervisor.is_ready)
            reading.cancel()
            await eventually(lambda: supervisor.is_ready)
            outputs = await collect(supervisor, make_request("after"))
            assert outputs[-1].finish_reason is FinishReason.LENGTH
            assert supervisor.last_stats is not None
            assert supervisor.last_stats.num_running == 0

    asyncio.run(main())


def test_requests_between_two_lives_are_refused_as_engine_dead_and_info_stays_known() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            info = supervisor.info
            os.kill(pid_of(supervisor), signal.SIGKILL)
            await eventually(lambda: not supervisor.is_ready)
            with pytest.raises(EngineDead, match="starting"):
                await collect(supervisor, make_request())
            assert supervisor.info == info
            await eventually(lambda: supervisor.is_ready)

    asyncio.run(main())


def test_an_engine_that_is_killed_ten_times_serves_after_each() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            for round_number in range(10):
                await eventually(lambda: supervisor.is_ready)
                outputs = await collect(supervisor, make_request(f"r{round_number}"))
                assert outputs[-1].finish_reason is FinishReason.LENGTH
                os.kill(pid_of(supervisor), signal.SIGKILL)
                await eventually(lambda: not supervisor.is_ready)
            await eventually(lambda: supervisor.is_ready)
            assert supervisor.num_restarts == 10

    asyncio.run(main())


def test_a_request_that_ends_the_engine_twice_is_quarantined_by_name_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            before = make_request("before", max_tokens=400)
            after = make_request("after", prompt=(7,), max_tokens=300)
            readers = [asyncio.create_task(collect(supervisor, before))]
            await eventually(lambda: supervisor.num_open_streams == 1)
            bad = asyncio.create_task(collect(supervisor, make_request("bad", prompt=(STEP_BUG,), n=2)))
            await eventually(lambda: supervisor.num_restarts == 1 and supervisor.is_ready)
            readers.append(asyncio.create_task(collect(supervisor, after)))
            with pytest.raises(RequestQuarantined, match="more than once"):
                await bad
            for request, outputs in zip((before, after), await asyncio.gather(*readers), strict=True):
                check_whole(request, outputs)
            assert supervisor.num_restarts == 2

    asyncio.run(main())
    assert [record for record in caplog.messages if "request bad ended the engine process again" in record]


def test_an_engine_that_cannot_be_started_again_ends_the_streams_that_wait_for_it(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    program = ONLY_ONCE.format(root=str(Path(__file__).parents[2]), marker=str(marker))

    async def main() -> None:
        supervisor = new_supervisor(command=(sys.executable, "-c", program))
        await supervisor.start()
        outputs = supervisor.generate(make_request(max_tokens=ENDLESS))
        await anext(outputs)
        os.kill(pid_of(supervisor), signal.SIGKILL)
        with pytest.raises(EngineDead, match="cannot be started again"):
            _ = [output async for output in outputs]
        await supervisor.close()

    asyncio.run(main())


ONLY_ONCE = """
import os, sys
sys.path.insert(0, {root!r})
from tests.engine.fake_child import main
if os.path.exists({marker!r}):
    sys.exit(9)
open({marker!r}, "w").close()
sys.exit(main())
"""


def test_a_frozen_engine_is_not_ready_after_the_silence_limit_and_recovers_when_it_goes_on() -> None:
    async def main() -> None:
        limits = SupervisorLimits(ping_interval_s=0.02, silence_limit_s=0.5, restart_delays_s=(0.0,))
        async with supervised(limits=limits) as supervisor:
            pid = pid_of(supervisor)
            os.kill(pid, signal.SIGSTOP)
            try:
                assert await eventually(lambda: not supervisor.is_ready) > 0.2
                with pytest.raises(EngineDead, match="does not answer"):
                    await collect(supervisor, make_request())
            finally:
                os.kill(pid, signal.SIGCONT)
            await eventually(lambda: supervisor.is_ready)
            assert (await collect(supervisor, make_request()))[-1].finish_reason is FinishReason.LENGTH
            assert supervisor.num_restarts == 0

    asyncio.run(main())


def test_a_frozen_engine_does_not_keep_close_from_ending_it() -> None:
    async def main() -> None:
        limits = SupervisorLimits(ping_interval_s=0.02, stop_grace_s=0.1)
        async with supervised(limits=limits) as supervisor:
            os.kill(pid_of(supervisor), signal.SIGSTOP)

    asyncio.run(main())


def test_an_engine_thread_stuck_in_a_step_is_not_ready_although_the_process_answers() -> None:
    async def main() -> None:
        limits = SupervisorLimits(ping_interval_s=0.02, silence_limit_s=0.5, stop_grace_s=0.1)
        async with supervised(limits=limits) as supervisor:
            reading = asyncio.create_task(collect(supervisor, make_request(prompt=(STEP_HANG,))))
            await eventually(lambda: supervisor.tick_age_s > 0.5)
            assert not supervisor.is_ready
            assert supervisor.engine_pid is not None
            reading.cancel()

    asyncio.run(main())


def test_b08_a_frozen_engine_is_found_stopped_and_woken_or_else_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with supervised(limits=WATCHFUL) as supervisor:
            request = make_request(max_tokens=300)
            reading = asyncio.create_task(collect(supervisor, request))
            await eventually(lambda: supervisor.num_open_streams == 1)
            os.kill(pid_of(supervisor), signal.SIGSTOP)
            await eventually(lambda: not supervisor.is_ready)
            await eventually(lambda: supervisor.is_ready)
            check_whole(request, await reading)
            assert supervisor.num_restarts <= 1, "on a busy machine it may not speak up in time"

    asyncio.run(main())
    assert "T (stopped)) hangs" in caplog.text


def test_a_hanging_step_is_dumped_and_replaced_and_only_its_request_is_given_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def main() -> None:
        async with supervised(limits=WATCHFUL) as supervisor:
            bystander = make_request("bystander", max_tokens=300)
            reading = asyncio.create_task(collect(supervisor, bystander))
            await eventually(lambda: supervisor.num_open_streams == 1)
            with pytest.raises(RequestQuarantined):
                await collect(supervisor, make_request("hangs", prompt=(STEP_HANG,)))
            check_whole(bystander, await reading)
            assert supervisor.num_restarts == 2

    asyncio.run(main())
    dumped = capfd.readouterr().err
    assert "fakes_engine.py" in dumped
    assert "in _advance" in dumped


def test_a_step_that_was_foretold_to_be_long_is_not_taken_for_a_hang() -> None:
    async def main() -> None:
        limits = SupervisorLimits(ping_interval_s=0.02, silence_limit_s=0.3, hang_limit_s=0.3)
        async with supervised("foretells-long-steps", limits) as supervisor:
            reading = asyncio.create_task(collect(supervisor, make_request(prompt=(STEP_HANG,))))
            await eventually(lambda: supervisor.tick_age_s > 1.0)
            assert supervisor.is_ready
            assert supervisor.num_restarts == 0
            reading.cancel()
            os.kill(pid_of(supervisor), signal.SIGKILL)  # rather than wait for its minute

    asyncio.run(main())


def test_an_engine_that_ends_by_itself_is_started_again() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            os.kill(pid_of(supervisor), signal.SIGTERM)
            await eventually(lambda: supervisor.num_restarts == 1)
            await eventually(lambda: supervisor.is_ready)

    asyncio.run(main())


RUBBISH_CHILD = """
import json, random, socket, sys, time
sys.path.insert(0, {root!r})
from headrace.engine.messages import Hello, Ready, encode
from headrace.engine.frame_socket import frame
from tests.fakes_engine import INFO
start = json.loads(sys.stdin.readline())
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(start["socket_path"])
connection.sendall(frame(encode(Hello(start["token"]))) + frame(encode(Ready(INFO))))
connection.sendall({rubbish})
connection.recv(1)
"""


@pytest.mark.parametrize(
    "rubbish",
    [
        r"frame(b'\xc1' * 1000)",
        r"b'\xff' * 1000",
        r"random.Random(3).randbytes(1 << 20)",
        "frame(encode(Hello('again'))) + frame(b'')",
        r"frame(b'\x93\xa7outputs\x91\xc0\xc0')",
    ],
    ids=["garbage body", "huge length", "a mebibyte of noise", "empty frame", "wrong types"],
)
def test_a_child_that_speaks_rubbish_is_hung_up_on_and_replaced(rubbish: str) -> None:
    program = RUBBISH_CHILD.format(root=str(Path(__file__).parents[2]), rubbish=rubbish)

    async def main() -> None:
        supervisor = new_supervisor(command=(sys.executable, "-c", program))
        await supervisor.start()
        await eventually(lambda: supervisor.num_restarts >= 2)
        await supervisor.close()
        assert supervisor.engine_pid is None

    asyncio.run(main())


IMPOSTOR = """
import json, socket, sys, threading
sys.path.insert(0, {root!r})
from headrace.engine.messages import Hello, encode
from headrace.engine.frame_socket import frame
start = json.loads(sys.stdin.readline())
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(start["socket_path"])
connection.sendall(frame(encode(Hello("0" * 64))))
assert connection.recv(1) == b""
raise SystemExit(9)
"""


def test_a_child_with_the_wrong_token_is_never_listened_to() -> None:
    program = IMPOSTOR.format(root=str(Path(__file__).parents[2]))

    async def main() -> None:
        supervisor = new_supervisor(command=(sys.executable, "-c", program))
        with pytest.raises(EngineDead, match="died 3 times"):
            await supervisor.start()

    asyncio.run(main())


PARENT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.engine.supervised import new_supervisor
from tests.fakes_engine import make_request

async def main():
    supervisor = new_supervisor()
    await supervisor.start()
    async for output in supervisor.generate(make_request(max_tokens=1_000_000)):
        print(supervisor.engine_pid, flush=True)

asyncio.run(main())
"""


def test_a_parent_killed_while_serving_takes_the_engine_along() -> None:
    program = PARENT.format(root=str(Path(__file__).parents[2]))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        engine_pid = int(parent.stdout.readline())
        assert is_running(engine_pid)
        parent.kill()
        parent.wait()
    eventually_sync(lambda: not is_running(engine_pid), within_s=5.0)


def test_ctrl_c_at_the_terminal_reaches_the_parent_alone() -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            assert os.getsid(pid_of(supervisor)) != os.getsid(0)

    asyncio.run(main())
