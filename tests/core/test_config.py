"""Every setting is declared completely, and settings that contradict each other are refused."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from headrace.core.config import EngineConfig, ServeConfig
from headrace.core.errors import ConfigError
from headrace.core.settings import Kind, Setting, settings_of

SETTINGS = settings_of(ServeConfig)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_setting_says_what_it_is(setting: Setting) -> None:
    assert setting.group in {"model", "scheduler", "cache", "server", "limits", "logging"}
    assert 10 < len(setting.help) < 120
    assert not setting.help.endswith(".")
    assert setting.unit in {"", "bytes", "count"}
    assert setting.name.endswith("_bytes") == (setting.unit == "bytes")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_is_valid(setting: Setting) -> None:
    assert setting.check(setting.default, setting.name) == setting.default


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if s.kind in (Kind.INT, Kind.FLOAT)], ids=lambda setting: setting.name
)
def test_a_number_has_both_bounds(setting: Setting) -> None:
    assert setting.minimum is not None
    assert setting.maximum is not None


def test_no_two_settings_share_a_spelling() -> None:
    spellings = [spelling for s in SETTINGS for spelling in (s.flag, *(f"--{alias}" for alias in s.aliases))]
    assert len(spellings) == len(set(spellings))


def test_an_engine_config_is_part_of_a_serve_config() -> None:
    names = [setting.name for setting in SETTINGS]
    assert [setting.name for setting in settings_of(EngineConfig)] == names[: len(settings_of(EngineConfig))]


def test_a_config_never_changes() -> None:
    config = EngineConfig()
    with pytest.raises(AttributeError):
        config.block_size = 32  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        SETTINGS[0].name = "other"  # type: ignore[misc]


def test_more_sequences_than_tokens_in_a_step_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max_num_seqs is 65 but max_num_batched_tokens is 64") as caught:
        EngineConfig(max_num_seqs=65, max_num_batched_tokens=64)
    assert caught.value.field == "max_num_batched_tokens"
    with pytest.raises(ConfigError):
        msgspec.structs.replace(EngineConfig(), max_num_batched_tokens=1)
    assert EngineConfig(max_num_seqs=64, max_num_batched_tokens=64).max_num_seqs == 64
