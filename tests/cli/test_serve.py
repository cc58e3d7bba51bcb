"""``headrace serve`` hands the server the config that flags, variables and file give together."""

from __future__ import annotations

import socket

import pytest

from headrace.cli.main import EXIT_USAGE, main
from headrace.core.config import ServeConfig
from headrace.core.progress import Progress


def test_the_server_gets_the_config_and_its_exit_code_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[ServeConfig] = []

    def serve(config: ServeConfig, progress: Progress | None = None) -> int:
        served.append(config)
        return 7

    monkeypatch.setattr("headrace.server.run.serve", serve)
    monkeypatch.setenv("HEADRACE_BLOCK_SIZE", "32")
    assert main(["serve", "m", "--port", "0", "--api-key", "k"]) == 7
    assert served == [ServeConfig(model="m", port=0, api_key=("k",), block_size=32)]


def test_a_taken_port_is_one_line_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "no-such-model", "--port", str(port)]) == EXIT_USAGE
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert str(port) in shown
    assert shown.count("\n") == 1


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm3", "--port", "0"]) == EXIT_USAGE
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: there is no model 'smollm3'")
