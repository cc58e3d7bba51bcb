"""``headrace run`` streams one answer, through the template or raw, and ends as asked."""

from __future__ import annotations

import io
import sys

import pytest

from headrace.cli.main import EXIT_FAILURE, EXIT_USAGE, main
from headrace.cli.terminal import AnswerWriter
from headrace.core.config import EngineConfig
from headrace.core.errors import RequestFailed
from headrace.core.progress import Progress
from headrace.core.request import FinishReason, OutputError, RequestOutput, Usage
from headrace.llm.loading import LoadedModel
from tests.llm.house import EOS, House, answer, text_of


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def visible(prompt: list[int], max_tokens: int) -> str:
    return text_of([token_id for token_id in answer(prompt, max_tokens) if token_id != EOS])


@pytest.fixture(name="configs")
def loaded_configs(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """The model is the house's; the configs it was loaded with are kept."""
    configs: list[EngineConfig] = []

    def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
        configs.append(config)
        return House().loaded

    monkeypatch.setattr("headrace.llm.loading.load_model", load_model)
    return configs


def test_a_prompt_goes_through_the_chat_template(
    configs: list[EngineConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "m", "CD", "--max-tokens", "6", "--block-size", "4"]) == 0
    shown = capsys.readouterr()
    assert shown.out == visible([21, 3, 4, 1], 6) + "\n"
    assert shown.err == ""
    assert configs == [EngineConfig(model="m", block_size=4)]


def test_raw_continues_the_prompt(configs: list[EngineConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m", "--raw", "--max-tokens", "6", "CD"]) == 0
    assert capsys.readouterr().out == visible([3, 4], 6) + "\n"


def test_a_prompt_can_be_piped_in(
    configs: list[EngineConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("CD"))
    assert main(["run", "m", "--raw", "--max-tokens", "6"]) == 0
    assert capsys.readouterr().out == visible([3, 4], 6) + "\n"


def test_a_terminal_without_a_prompt_is_wrong_usage(
    configs: list[EngineConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Screen())
    assert main(["run", "m"]) == EXIT_USAGE
    assert "run needs a prompt" in capsys.readouterr().err
    assert configs == []


@pytest.mark.parametrize("piped", ["", " \n"])
def test_nothing_piped_in_is_wrong_usage(
    piped: str, configs: list[EngineConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
    assert main(["run", "m"]) == EXIT_USAGE
    assert "standard input is empty" in capsys.readouterr().err
    assert configs == []


def test_verbose_tells_tokens_and_times(configs: list[EngineConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m", "CD", "--raw", "--max-tokens", "1", "--verbose"]) == 0
    shown = capsys.readouterr().err
    assert shown.startswith("prompt 2 tokens (0 cached), output 1 tokens in ")
    assert shown.endswith("finish: length\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "-1"], "error: --temperature is -1.0 but must be between 0 and 100"),
        (["--temperature", "hot"], "error: argument --temperature: invalid float value: 'hot'"),
        (["--top-p", "0"], "error: --top-p is 0 but must be in (0, 1]"),
        (["--max-tokens", "0"], "error: --max-tokens is 0 but must be between 1 and"),
        (["--stop", ""], "error: each --stop string must have 1 to 4096 characters"),
        (["--port", "1"], "error: unknown flag --port"),
    ],
    ids=str,
)
def test_a_wrong_flag_is_named(
    configs: list[EngineConfig], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "m", "CD", *words]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith(message)
    assert configs == []


def test_a_prompt_that_is_too_long_fails_with_both_numbers(
    configs: list[EngineConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "m", "C" * 200, "--raw"]) == EXIT_FAILURE
    assert "the prompt has 200 tokens but max_model_len is 100" in capsys.readouterr().err


def test_run_prints_its_config_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m", "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert 'model = "m"' in shown
    assert "port" not in shown


def output(text: str = "", **fields: object) -> RequestOutput:
    return RequestOutput(request_id="r", text=text, usage=Usage(1, 0, 1), **fields)  # type: ignore[arg-type]


def test_a_terminal_is_shown_text_and_nothing_else() -> None:
    screen = Screen()
    answer_writer = AnswerWriter(screen)
    answer_writer.write([output("a\x1b[2J\x07b\n\tc\x9b1m")])
    assert screen.getvalue() == "a�[2J�b\n\tc�1m\n"
    assert answer_writer.text == "a\x1b[2J\x07b\n\tc\x9b1m"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    pipe = io.StringIO()
    AnswerWriter(pipe).write([output("a\x1b[0m\n")])
    assert pipe.getvalue() == "a\x1b[0m\n"


def test_a_failed_answer_is_an_error_after_what_came() -> None:
    pipe = io.StringIO()
    failed = output(finish_reason=FinishReason.ERROR, error=OutputError("RequestFailed", "logits are not finite"))
    with pytest.raises(RequestFailed, match="logits are not finite"):
        AnswerWriter(pipe).write([output("so far"), failed])
    assert pipe.getvalue() == "so far\n"
