"""The benchmarks of programs run as documented, on a tiny model; what they measure is not judged here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from benchmarks.programs import Ways, batch_seconds, decision_figures
from benchmarks.speculation import Servers, describe, numbered, take_client_turns, take_turns

from headrace.program import RuntimeEndpoint
from tests.server.harness import RunningServer, running_server
from tests.server.real_engine import tiny_backend
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    with running_server(tiny_backend(folder, max_model_len=2048, kv_cache_bytes=8 << 20)) as server:
        yield server


@pytest.fixture
def endpoint(server: RunningServer) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(server.url) as endpoint:
        yield endpoint


def test_a_program_is_run_in_three_ways(endpoint: RuntimeEndpoint) -> None:
    figures = Ways(endpoint, endpoint).figures("extract_json", 1)
    assert min(figures.program_s, figures.sequential_s, figures.unshared_s) > 0
    assert 0 < figures.hit_rate < 1
    assert "extract_json" in figures.line


def test_a_batch_and_decisions_are_timed(endpoint: RuntimeEndpoint) -> None:
    assert batch_seconds(endpoint, 3) > 0
    figures = decision_figures(endpoint, "The box was dry.", 6, 2)
    assert figures.count == 6
    assert [chat.kind for chat in figures.chat_calls] == ["words", "JSON"]
    for chat, line in zip(figures.chat_calls, figures.lines, strict=True):
        assert chat.num_called == 2
        assert 0 < chat.num_answer_tokens <= 64
        assert line.startswith("6 decisions: ")


def test_guessing_and_waiting_take_turns_and_give_the_same(server: RunningServer) -> None:
    urls = Servers(server.url, server.url, server.url)
    essays = [numbered(0, 2), numbered(1, 2)]
    for turns in (asyncio.run(take_turns(urls, essays, 2)), take_client_turns(urls, essays)):
        assert len(turns) == 2
        assert all(turn.speedup > 0 and turn.noise > 0 for turn in turns)
        assert all(turn.num_right_guesses <= turn.num_guesses for turn in turns)
        assert describe("here", turns).startswith("here ")
