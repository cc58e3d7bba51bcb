"""Four sources give one config: each is checked, the order of precedence holds, and TOML gives it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import EngineConfig, ServeConfig
from headrace.core.errors import ConfigError
from headrace.core.settings import (
    MAX_CONFIG_FILE_BYTES,
    Kind,
    Setting,
    config_from_arguments,
    load_config,
    settings_of,
    to_toml,
)
from headrace.core.settings_reference import render_reference

SETTINGS = {setting.name: setting for setting in settings_of(ServeConfig)}
REFERENCE_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def load(
    flags: dict[str, str | list[str]] | None = None, environ: dict[str, str] | None = None, file: Path | None = None
) -> ServeConfig:
    return load_config(ServeConfig, flags or {}, environ or {}, file)


def write(folder: Path, text: str) -> Path:
    file = folder / "server.toml"
    file.write_text(text, encoding="utf-8")
    return file


def scalars(setting: Setting) -> st.SearchStrategy[object]:
    if setting.kind is Kind.BOOL:
        return st.booleans()
    if setting.kind is Kind.CHOICE:
        return st.sampled_from(setting.choices)
    if setting.kind is Kind.TEXT:
        return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20)
    assert setting.minimum is not None
    assert setting.maximum is not None
    if setting.kind is Kind.INT:
        return st.integers(int(setting.minimum), int(setting.maximum))
    return st.floats(setting.minimum, setting.maximum)


LINES = {
    "service_class": st.sampled_from([(), ("gold ttft=300ms tpot=25ms",), ("slow late", "x.y deadline=5m")]),
    "tenant": st.sampled_from([(), ("a key=k#1",), ("a key=1 class=batch weight=2", "b key=2")]),
}
"""Settings whose text has a form of its own."""


def values(setting: Setting) -> st.SearchStrategy[object]:
    if setting.name in LINES:
        return LINES[setting.name]
    if setting.is_repeatable:
        return st.lists(scalars(setting), max_size=3).map(tuple)
    return st.none() | scalars(setting) if setting.is_optional else scalars(setting)


CONFIG_VALUES = st.fixed_dictionaries({name: values(setting) for name, setting in SETTINGS.items()}).filter(
    lambda chosen: chosen["max_num_seqs"] <= chosen["max_num_batched_tokens"]
)


@given(CONFIG_VALUES)
def test_toml_gives_exactly_the_config_back(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, object]
) -> None:
    config = ServeConfig(**chosen)  # type: ignore[arg-type]
    file = write(tmp_path_factory.mktemp("config", numbered=True), to_toml(config))
    assert load(file=file) == config


@given(CONFIG_VALUES)
def test_flags_give_exactly_the_config_back(chosen: dict[str, object]) -> None:
    config = ServeConfig(**chosen)  # type: ignore[arg-type]
    flags: dict[str, str | list[str]] = {}
    for name, value in chosen.items():
        setting = SETTINGS[name]
        if isinstance(value, tuple):
            flags[name] = [setting.shown(item) for item in value]
        elif value is not None:
            flags[name] = setting.shown(value)  # type: ignore[arg-type]
    assert load(flags) == config


def test_flags_win_over_variables_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 1\nmax_num_seqs = 1\nblock_size = 1\n")
    environ = {"HEADRACE_PORT": "2", "HEADRACE_MAX_NUM_SEQS": "2"}
    config = load({"port": "3"}, environ, file)
    assert (config.port, config.max_num_seqs, config.block_size, config.max_num_queued_reqs) == (3, 2, 1, 256)


def test_no_source_gives_the_defaults() -> None:
    assert load() == ServeConfig()
    assert load(environ={"PATH": "/bin", "HEADRACE_CACHE_DIR": "/cache"}) == ServeConfig()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kv_cache_bytes", "2GiB", 2 << 30),
        ("max_model_len", "32k", 32_000),
        ("max_model_len", "32K", 32_768),
        ("max_body_bytes", "1MB", 1_000_000),
        ("keep_alive_s", "2.5", 2.5),
        ("log_requests", "Yes", True),
        ("enable_prefix_caching", "0", False),
        ("api_key", "a, b,", ("a", "b")),
        ("api_key", "", ()),
    ],
)
def test_a_variable_is_read_as_its_setting_says(name: str, text: str, value: object) -> None:
    assert getattr(load(environ={SETTINGS[name].variable: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("port", "70000", ("70000", "0 to 65535")),
        ("port", "-1", ("-1", "0 to 65535")),
        ("port", "http", ("'http'", "integer")),
        ("port", "8k", ("'8k'", "no unit")),
        ("port", "", ("''", "integer")),
        ("max_body_bytes", "2GiB", ("2147483648", "1KiB to 1GiB")),
        ("max_body_bytes", "1.0001k", ("whole",)),
        ("keep_alive_s", "nan", ("nan", "finite")),
        ("keep_alive_s", "soon", ("'soon'", "number")),
        ("dtype", "fp16", ("'fp16'", "bfloat16", "int4")),
        ("log_requests", "maybe", ("'maybe'", "true or false")),
        ("host", "", ("''", "empty")),
        ("host", "a\x00b", ("NUL",)),
        ("host", "\udcff", ("UTF-8",)),
        ("model", "x" * 1000 + "\x00", ("...",)),
    ],
)
def test_a_bad_value_names_flag_or_variable_value_and_bound(name: str, text: str, parts: tuple[str, ...]) -> None:
    setting = SETTINGS[name]
    for where, source in (
        (setting.flag, {"flags": {name: text}}),
        (setting.variable, {"environ": {setting.variable: text}}),
    ):
        with pytest.raises(ConfigError) as caught:
            load(**source)  # type: ignore[arg-type]
        assert caught.value.field == name
        assert caught.value.message.startswith(f"{where} is ")
        assert all(part in caught.value.message for part in parts)
        assert len(caught.value.message) < 250


def test_an_unknown_variable_is_an_error_that_knows_the_right_one() -> None:
    with pytest.raises(ConfigError, match="HEADRACE_PROT; did you mean HEADRACE_PORT"):
        load(environ={"HEADRACE_PROT": "1"})
    with pytest.raises(ConfigError, match="HEADRACE_CACHE_DIRECTORY; did you mean HEADRACE_CACHE_DIR"):
        load(environ={"HEADRACE_CACHE_DIRECTORY": "/x"})


def test_an_unknown_key_is_an_error_that_knows_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'max_model_length' in .*server.toml; did you mean max_model_len"):
        load(file=write(tmp_path, "max_model_length = 5"))


@pytest.mark.parametrize("key", ["max-num-seqs", "max_num_seqs", "max-running-requests", "max_batch_size"])
def test_a_file_may_use_any_spelling_of_a_flag(tmp_path: Path, key: str) -> None:
    assert load(file=write(tmp_path, f"{key} = 7")).max_num_seqs == 7


def test_a_file_may_write_units_and_single_values(tmp_path: Path) -> None:
    config = load(file=write(tmp_path, 'kv_cache_bytes = "2GiB"\napi_key = "k"\nkeep_alive_s = 5\n'))
    assert (config.kv_cache_bytes, config.api_key, config.keep_alive_s) == (2 << 30, ("k",), 5.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 70000", "port in .* is 70000 but must be 0 to 65535"),
        ('port = "8000"', "port in .* is '8000' but must be an integer"),
        ("port = true", "must be an integer"),
        ("port = 80.0", "must be an integer"),
        ("keep_alive_s = inf", "finite"),
        ("log_requests = 1", "true or false"),
        ("host = 1", "must be text"),
        ("api_key = [1]", "must be text"),
        ("[server]\nport = 1", "unknown setting 'server'"),
        ("max_num_seqs = 1\nparallel = 2", "sets max_num_seqs twice; parallel is another name"),
        ("port = ", "not valid TOML"),
        ("port = " + "[" * 100_000, "not valid TOML"),
    ],
    ids=lambda text: text[:30],
)
def test_a_bad_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file=write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        load(file=tmp_path)
    with pytest.raises(ConfigError, match="is YAML but --config takes TOML"):
        load(file=tmp_path / "server.yaml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file=binary)
    binary.write_bytes(b"#" * (MAX_CONFIG_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="is it a config file"):
        load(file=binary)


def test_an_engine_config_leaves_out_server_settings_but_checks_them(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 1\nblock_size = 4\n")
    config = load_config(EngineConfig, {}, {"HEADRACE_API_KEY": "k"}, file)
    assert config == EngineConfig(block_size=4)
    with pytest.raises(ConfigError, match="HEADRACE_PORT"):
        load_config(EngineConfig, {}, {"HEADRACE_PORT": "x"}, None)


def test_keyword_arguments_are_checked_like_a_file() -> None:
    config = config_from_arguments(EngineConfig, {"model": "m", "kv_cache_bytes": "1GiB", "threads": None})
    assert config == EngineConfig(model="m", kv_cache_bytes=1 << 30)
    with pytest.raises(ConfigError, match="unknown setting 'max_len'; did you mean max_model_len"):
        config_from_arguments(EngineConfig, {"max_len": 1})
    with pytest.raises(ConfigError, match="max_num_seqs is 0 but must be 1 to 65536"):
        config_from_arguments(EngineConfig, {"max_num_seqs": 0})
    with pytest.raises(ConfigError, match="block_size is None but must be an integer"):
        config_from_arguments(EngineConfig, {"block_size": None})


def test_the_reference_page_is_up_to_date() -> None:
    assert REFERENCE_PAGE.read_text(encoding="utf-8") == render_reference(), (
        "run: python -m headrace.core.settings_reference > docs/reference/settings.md"
    )


def test_the_reference_page_names_every_flag_and_alias() -> None:
    page = render_reference()
    for setting in SETTINGS.values():
        for spelling in (setting.flag, *(f"--{alias}" for alias in setting.aliases)):
            assert f"`{spelling}`" in page
