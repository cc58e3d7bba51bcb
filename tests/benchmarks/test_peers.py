"""The comparison runs as documented, over a tiny model and a peer that is one line; speeds are not judged here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PEER = f"{sys.executable} -c 'print(1e-3)'"
BROKEN_PEER = f"{sys.executable} -c 'import sys; sys.exit(\"no such scenario\")'"


def run_script(code: str, *arguments: str) -> str:
    """What ``code`` prints in a process that sees the benchmarks as a script there does."""
    command = [sys.executable, "-c", code, *arguments]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment).stdout


def test_a_comparison_names_ratios_spreads_and_what_failed(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    report_path = tmp_path / "report.json"
    command = [sys.executable, str(BENCHMARKS / "peers.py"), "--model", str(model), "--quick", "--rounds", "2"]
    command += ["--threads", "1", "--scenarios", "decode", "start", "--json", str(report_path)]
    command += ["--peer", f"snail={PEER}", "--peer", f"wreck={BROKEN_PEER}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)

    report = json.loads(report_path.read_text())
    measured = {(s["scenario"], s["round"], s["contender"]): s["values"] for s in report["samples"]}
    assert {key for key in measured if key[2] == "snail"} == {("decode", index, "snail") for index in (0, 1)}
    assert all(measured["decode", index, "headrace"]["tokens_per_s"] > 1.0 for index in (0, 1))
    assert measured["start", 0, "headrace"]["ready_s"] > 0.0
    assert "no such scenario" in report["failures"]["wreck, decode"]
    (decode_line,) = [line for line in done.stdout.splitlines() if line.startswith("decode, 1 sequence, 128 tokens  ")]
    assert "snail" in decode_line
    assert float(decode_line.split()[-2]) > 1000.0  # the ratio, before its spread
    assert "not measured: wreck, decode: " in done.stdout


def test_spreads_keep_three_digits_and_ratios_say_how_much_better_ours_is() -> None:
    code = """if True:
        from contenders.scenario import Metric
        from peers import ratios, spread
        print(spread([1234.5, 0.012345, 98.76]))
        print(spread([]))
        print(ratios({0: 10.0, 1: 20.0, 2: 5.0}, {0: 5.0, 1: 5.0}, Metric("speed", "", more_is_better=True)))
        print(ratios({0: 10.0}, {0: 5.0}, Metric("time", "", more_is_better=False)))
    """
    assert run_script(code).splitlines() == ["98.8 [0.0123-1234]", "-", "[2.0, 4.0]", "[0.5]"]


CHUNKS = [
    b'data: {"choices": [{"text": ""}]}\n\nda',  # a line across chunks, and no text yet
    b'ta: {"choices": [{"text": "one"}]}\n\n',
    b'data: {"choices": [{"text": " two"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]\n\n',
]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for chunk in [*CHUNKS, b""]:
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        await writer.drain()
    writer.close()


@pytest.fixture(name="port")
def streaming_port() -> Iterator[int]:
    """A listener that answers every request with ``CHUNKS``."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


LOAD = """if True:
    import sys
    from contenders.http_load import Server, load_streams
    from contenders.scenario import Kind, MeasurementError, Scenario
    scenario = Scenario("", "", Kind.STREAMS, prompt=3, output=int(sys.argv[2]), sequences=4)
    try:
        values = load_streams(Server(int(sys.argv[1]), "m"), scenario, seed=1)
        print(round(values["tokens_per_s"] * values["wall_s"]), 0.0 < values["ttft_p50_s"] < values["wall_s"])
    except MeasurementError as error:
        print(error)
"""


def test_the_client_counts_tokens_across_chunks(port: int) -> None:
    assert run_script(LOAD, str(port), "2") == "8 True\n"


def test_a_server_that_stops_early_is_not_measured(port: int) -> None:
    assert run_script(LOAD, str(port), "3").startswith("asked for 3 tokens, got 2")


def test_the_random_model_can_be_read_and_has_a_billion_parameters(tmp_path: Path) -> None:
    code = """if True:
        import numpy as np
        from contenders.random_model import matrices, random_q4_0
        from headrace.checkpoint.tensor_type import TensorType
        from headrace.checkpoint.tensor_view import TensorView
        print(sum(rows * columns for _, rows, columns in matrices(49152)) // 10**6)
        blocks = random_q4_0(np.random.default_rng(1), 64, 256)
        values = TensorView("w", (64, 256), TensorType.Q4_0, blocks.reshape(-1)).to_float32()
        print(values.shape, 0.015 < values.std() < 0.025)
    """
    assert run_script(code).splitlines() == ["1073", "(64, 256) True"]
