"""Flags follow the config class, take every known spelling, and a typo is answered with the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.flags import Parser, add_config_flags, read_config
from headrace.cli.main import EXIT_USAGE, main
from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError
from headrace.core.settings import Kind, Setting, settings_of

SETTINGS = settings_of(ServeConfig)


def parse(*words: str, environ: dict[str, str] | None = None) -> ServeConfig:
    parser = Parser("serve", "Serve.", "[MODEL]")
    add_config_flags(parser, ServeConfig)
    return read_config(ServeConfig, parser.parse(words), environ or {})


def test_no_flags_give_the_defaults() -> None:
    assert parse() == ServeConfig()


@pytest.mark.parametrize("words", [("m", "--port", "1"), ("--port", "1", "m"), ("--port=1", "--model", "m")])
def test_the_model_may_stand_anywhere(words: tuple[str, ...]) -> None:
    assert parse(*words) == ServeConfig(model="m", port=1)


def test_two_different_models_are_refused() -> None:
    assert parse("m", "--model", "m").model == "m"
    with pytest.raises(ConfigError, match="MODEL is a but --model is b; give one"):
        parse("a", "--model", "b")


def test_the_model_argument_wins_over_the_environment() -> None:
    assert parse("m", environ={"HEADRACE_MODEL": "other"}).model == "m"
    assert parse(environ={"HEADRACE_MODEL": "other"}).model == "other"


LINES = {"tenant": "100 key=100"}
"""Settings whose text has a form of its own."""


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_spelling_sets_its_setting(setting: Setting) -> None:
    for spelling in (setting.flag, *(f"--{alias}" for alias in setting.aliases)):
        for flag in (spelling, "--" + spelling[2:].replace("-", "_")):
            if setting.kind is Kind.BOOL:
                assert getattr(parse(flag), setting.name) is True
                assert getattr(parse(flag.replace("--", "--no-", 1)), setting.name) is False
                continue
            number = min(max(100, setting.minimum or 0), setting.maximum or 100)
            text = LINES.get(setting.name) or next(reversed(setting.choices), str(number))
            value = getattr(parse(flag, text), setting.name)
            assert str(value[0] if setting.is_repeatable else value).removesuffix(".0") == text
            assert parse(f"{flag}={text}") == parse(flag, text)


def test_a_repeated_flag_collects_or_the_last_wins() -> None:
    config = parse("--api-key", "a", "--port", "1", "--api-key", "b", "--port", "2")
    assert (config.api_key, config.port) == (("a", "b"), 2)


def test_a_value_keeps_its_underscores() -> None:
    assert parse("--model=my_model", "--api-key", "a_b") == ServeConfig(model="my_model", api_key=("a_b",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prot", "1"), "unknown flag --prot; did you mean --port?"),
        (("--max-model-length=1",), "unknown flag --max-model-length; did you mean --max-model-len?"),
        (("--contxt-length", "1"), "unknown flag --contxt-length; did you mean --context-length?"),
        (("--max-num", "1"), "unknown flag --max-num"),
        (("-x",), "unknown flag -x"),
        (("m", "extra"), "unexpected argument 'extra'; see headrace serve --help"),
        (("--port",), "argument --port: expected one argument; see headrace serve --help"),
        (("--port", "70000"), "--port is 70000 but must be 0 to 65535"),
        (("--port", "-1"), "--port is -1 but must be 0 to 65535"),
        (("--model", ""), "--model is '' but must be text that is not empty"),
        (("",), "--model is '' but must be text that is not empty"),
        (("--log-requests=yes",), "ignored explicit argument 'yes'"),
    ],
    ids=str,
)
def test_a_wrong_command_line_says_what_is_wrong(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*words)
    assert message in caught.value.message


def test_help_groups_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    position = 0
    for setting in SETTINGS:
        position = shown.index(f"\n  {setting.flag}", position)
    assert all(f"\n{group}:\n" in shown for group in ("model", "scheduler", "cache", "server", "limits", "logging"))
    assert "--context-length" not in shown


def test_print_config_can_be_used_as_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "m",
        "--port",
        "0",
        "--api-key",
        "a b",
        "--api-key",
        'c"\n',
        "--kv-cache-bytes",
        "1.5GiB",
        "--no-log-requests",
    ]
    assert main(["serve", *words, "--print-config"]) == 0
    first = capsys.readouterr().out
    file = tmp_path / "headrace.toml"
    file.write_text(first)
    assert main(["serve", "--config", str(file), "--print-config"]) == 0
    assert capsys.readouterr().out == first
    assert parse("--config", str(file)) == parse(*words)


def test_a_wrong_setting_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == EXIT_USAGE
    assert capsys.readouterr().err == "error: --port is 70000 but must be 0 to 65535\n"
