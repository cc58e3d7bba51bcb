"""The child's side, spoken to over its real socket by a bare ``EngineChild``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.core.config import EngineConfig, ServeConfig
from headrace.core.errors import EngineDead
from headrace.core.request import FinishReason
from headrace.engine.child import EngineChild
from headrace.engine.frame_socket import frame
from headrace.engine.messages import (
    Abort,
    Failed,
    FromEngine,
    Outputs,
    Ping,
    Pong,
    ProgressAdvanced,
    ProgressFinished,
    ProgressStarted,
    Ready,
    Refused,
    Shutdown,
    Submit,
)
from tests.engine.conditions import cpu_seconds, eventually, eventually_sync, is_running
from tests.engine.fake_child import FAKE_CHILD
from tests.fakes_engine import INFO, OVERLOAD, STEP_BUG, STEP_HANG, expected_text, make_request


@asynccontextmanager
async def child_process(model: str = "fake") -> AsyncIterator[tuple[EngineChild, list[FromEngine]]]:
    heard: list[FromEngine] = []
    child = await EngineChild.spawn(FAKE_CHILD, EngineConfig(model=model), heard.append)
    try:
        yield child, heard
    finally:
        await child.kill()
        assert not is_running(child.pid)


def said(heard: list[FromEngine], kind: type[FromEngine]) -> bool:
    return any(isinstance(message, kind) for message in heard)


async def ready(heard: list[FromEngine]) -> None:
    await eventually(lambda: said(heard, Ready))


def test_a_child_reports_progress_then_itself_then_its_outputs() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            assert heard[:4] == [
                ProgressStarted("weights", 3, "tensors"),
                ProgressAdvanced(1),
                ProgressAdvanced(2),
                ProgressFinished(),
            ]
            assert heard[4] == Ready(INFO)
            request = make_request(max_tokens=30)
            child.send(Submit(request))
            texts = [""]

            def is_finished() -> bool:
                outputs = [output for message in heard if isinstance(message, Outputs) for output in message.outputs]
                texts[0] = "".join(output.text for output in outputs)
                return bool(outputs) and outputs[-1].finish_reason is FinishReason.LENGTH

            await eventually(is_finished)
            assert texts[0] == expected_text(request)

    asyncio.run(main())


def test_a_refusal_is_a_message_and_an_unknown_abort_is_ignored() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child.send(Abort("nobody"))
            child.send(Submit(make_request("full", prompt=(OVERLOAD,))))
            await eventually(lambda: said(heard, Refused))
            assert heard[-1] == Refused("full", "Overloaded", "the queue is full", retry_after_s=2.5)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("model", "failed"),
    [
        ("config-error", Failed("ConfigError", "no such model: config-error", "model")),
        ("bug", Failed("EngineDead", "ZeroDivisionError: a bug in loading")),
    ],
)
def test_a_child_that_cannot_build_its_engine_says_why_and_exits(model: str, failed: Failed) -> None:
    async def main() -> None:
        async with child_process(model) as (child, heard):
            await child.wait_dead()
            assert heard == [failed]
            assert (await child.kill()).text == "exited with code 2"

    asyncio.run(main())


def test_an_exception_in_a_step_is_told_and_the_process_exits_non_zero() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child.send(Submit(make_request(prompt=(STEP_BUG,))))
            await child.wait_dead()
            assert isinstance(heard[-1], Failed)
            assert "ZeroDivisionError" in heard[-1].message
            assert (await child.stop(5.0)).text == "exited with code 1"

    asyncio.run(main())


def test_a_ping_is_answered_while_the_engine_thread_hangs_in_a_step() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child.send(Ping())
            await eventually(lambda: said(heard, Pong))
            assert heard[-1] == Pong(0.0)
            child.send(Submit(make_request(prompt=(STEP_HANG,))))

            def shows_a_long_step() -> bool:
                child.send(Ping())
                return isinstance(heard[-1], Pong) and heard[-1].tick_age_s > 0.1

            await eventually(shows_a_long_step)

    asyncio.run(main())


def test_shutdown_ends_the_process_in_order() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child.send(Submit(make_request(max_tokens=1_000_000)))
            await eventually(lambda: said(heard, Outputs))
            assert (await child.stop(10.0)).text == "exited with code 0"

    asyncio.run(main())


def test_shutdown_sent_while_the_engine_is_being_built_is_kept() -> None:
    async def main() -> None:
        async with child_process() as (child, _):
            child.send(Shutdown())
            await child.wait_dead()
            assert (await child.stop(10.0)).text == "exited with code 0"

    asyncio.run(main())


def test_sigterm_ends_a_child_that_loads_and_one_that_serves() -> None:
    async def main() -> None:
        for model in ("endless-loading", "fake"):
            async with child_process(model) as (child, heard):
                if model == "fake":
                    await ready(heard)
                os.kill(child.pid, signal.SIGTERM)
                await child.wait_dead()
                assert (await child.stop(10.0)).text == "exited with code 143"

    asyncio.run(main())


def test_sigint_is_left_to_the_parent() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            os.kill(child.pid, signal.SIGINT)
            child.send(Submit(make_request()))
            await eventually(lambda: said(heard, Outputs))
            assert os.getpgid(child.pid) == child.pid

    asyncio.run(main())


def test_the_end_of_the_socket_ends_the_child() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child._writer.close()
            assert await eventually(lambda: not is_running(child.pid), within_s=5.0) < 5.0

    asyncio.run(main())


def test_an_idle_child_uses_no_processor_time() -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child.send(Ping())
            await eventually(lambda: said(heard, Pong))
            before, start = cpu_seconds(child.pid), asyncio.get_running_loop().time()
            await eventually(lambda: asyncio.get_running_loop().time() - start > 1.0)
            assert cpu_seconds(child.pid) - before <= 0.02

    asyncio.run(main())


@pytest.mark.parametrize(
    "rubbish", [frame(b"\xc1garbage"), b"\xff\xff\xff\xff", frame(b"")], ids=["body", "length", "empty"]
)
def test_rubbish_from_the_parent_ends_the_child(rubbish: bytes) -> None:
    async def main() -> None:
        async with child_process() as (child, heard):
            await ready(heard)
            child._writer.write(rubbish)
            await child.wait_dead()
            assert (await child.stop(5.0)).text == "exited with code 1"

    asyncio.run(main())


def test_a_command_that_exits_at_once_is_a_dead_engine() -> None:
    async def main() -> None:
        with pytest.raises(EngineDead, match="exited with code 3 before it was up"):
            await EngineChild.spawn((sys.executable, "-c", "raise SystemExit(3)"), EngineConfig(), print)

    asyncio.run(main())


def test_the_start_line_carries_the_engines_share_of_the_config_and_the_token_is_nowhere_else(tmp_path: Path) -> None:
    """The child is told neither API keys nor limits of the server, and arguments and environment have no token."""
    dump = tmp_path / "start.json"
    program = (
        "import sys, json, os; line = sys.stdin.readline(); "
        "seen = {'line': json.loads(line), 'argv': sys.argv, 'env': dict(os.environ)}; "
        f"open({str(dump)!r}, 'w').write(json.dumps(seen))"
    )

    async def main() -> None:
        with pytest.raises(EngineDead):
            await EngineChild.spawn(
                (sys.executable, "-c", program), ServeConfig(model="m", api_key=("secret-key",)), print
            )

    asyncio.run(main())
    seen = json.loads(dump.read_text())
    assert seen["line"]["config"]["model"] == "m"
    assert "secret-key" not in json.dumps(seen["line"])
    assert len(seen["line"]["token"]) == 64
    assert seen["line"]["token"] not in json.dumps([seen["argv"], seen["env"]])


PARENT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from headrace.core.config import EngineConfig
from headrace.engine.child import EngineChild
from tests.engine.fake_child import FAKE_CHILD

async def main():
    child = await EngineChild.spawn(FAKE_CHILD, EngineConfig(model={model!r}), lambda message: None)
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("model", ["fake", "endless-loading"])
def test_a_killed_parent_takes_its_child_along(model: str) -> None:
    program = PARENT.format(root=str(Path(__file__).parents[2]), model=model)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert is_running(child_pid)
        parent.kill()
        parent.wait()
    eventually_sync(lambda: not is_running(child_pid), within_s=5.0)
