"""Settings from annotations: what a config field accepts, and how flags, variables and a file become one.

Owns the reading of ``core/config.py``'s annotations, the checking of values against them, the precedence
(flags over ``HEADRACE_*`` variables over ``--config`` file over defaults) and the TOML form of a config.
It does not know argparse (``cli/flags.py``) nor what any setting is for.
"""

from __future__ import annotations

import enum
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import inspect

from headrace.core.config import EngineConfig, ServeConfig
from headrace.core.errors import ConfigError
from headrace.core.units import exact_size, parse_size

VARIABLE_PREFIX = "HEADRACE_"
OTHER_VARIABLES = {"HEADRACE_CACHE_DIR": "folder of downloaded models; default: `~/.cache/headrace`"}
"""Variables that are no setting of an engine or server, and what they mean."""

MAX_CONFIG_FILE_BYTES = 1 << 20

Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...] | None
Config = TypeVar("Config", bound=EngineConfig)

_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
_FALSE_WORDS = frozenset({"0", "false", "no", "off"})


class Kind(enum.Enum):
    """What one value of a setting is."""

    BOOL = "boolean"
    INT = "integer"
    FLOAT = "number"
    TEXT = "text"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a config class.

    ``minimum`` and ``maximum`` are inclusive. A repeatable setting holds a tuple of values, an optional
    one may be ``None``. ``unit`` is ``"bytes"``, ``"count"`` or empty.
    """

    name: str
    kind: Kind
    default: Value
    group: str
    help: str
    unit: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_optional: bool = False
    is_repeatable: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def bounds(self) -> str:
        """``1 to 1024``, ``at least 1``, or empty."""
        if self.minimum is None:
            return "" if self.maximum is None else f"at most {self.shown(self.maximum)}"
        low = self.shown(self.minimum)
        return f"at least {low}" if self.maximum is None else f"{low} to {self.shown(self.maximum)}"

    def shown(self, value: Value) -> str:
        """``value`` as a person would write it after the flag; several joined by commas, ``None`` empty."""
        if value is None:
            return ""
        if isinstance(value, tuple):
            return ",".join(self.shown(item) for item in value)
        if isinstance(value, bool):
            return str(value).lower()
        return exact_size(value) if self.unit == "bytes" and isinstance(value, int) else str(value)

    def parse(self, text: str, where: str) -> Scalar:
        """One value from a flag or variable; ``where`` names that source in errors."""
        if self.kind is Kind.BOOL:
            return self._parse_bool(text, where)
        if self.kind is Kind.INT:
            return self.check_item(self._parse_int(text, where), where)
        if self.kind is Kind.FLOAT:
            try:
                number = float(text)
            except ValueError:
                raise self._error(where, text, "must be a number") from None
            return self.check_item(number, where)
        return self.check_item(text, where)

    def check(self, value: object, where: str) -> Value:
        """A typed value (from a file or a keyword argument), checked and in canonical form."""
        if value is None and self.is_optional:
            return None
        if not self.is_repeatable:
            return self.check_item(value, where)
        items = value if isinstance(value, list | tuple) else (value,)
        return tuple(self.check_item(item, where) for item in items)

    def check_item(self, value: object, where: str) -> Scalar:
        if self.kind is Kind.BOOL:
            if not isinstance(value, bool):
                raise self._error(where, value, "must be true or false")
            return value
        if self.kind is Kind.INT:
            return self._check_int(value, where)
        if self.kind is Kind.FLOAT:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self._error(where, value, "must be a finite number")
            return float(self._check_bounds(value, where))
        return self._check_text(value, where)

    def _parse_bool(self, text: str, where: str) -> bool:
        word = text.strip().lower()
        if word not in _TRUE_WORDS | _FALSE_WORDS:
            raise self._error(where, text, "must be true or false")
        return word in _TRUE_WORDS

    def _parse_int(self, text: str, where: str) -> int:
        sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
        try:
            if not self.unit and not digits.strip().isdecimal():
                raise ValueError("it takes no unit")
            return sign * parse_size(digits)
        except ValueError as error:
            raise self._error(where, text, f"must be an integer ({error})") from None

    def _check_int(self, value: object, where: str) -> int:
        if isinstance(value, str) and self.unit:
            value = self._parse_int(value, where)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(where, value, "must be an integer")
        return int(self._check_bounds(value, where))

    def _check_bounds(self, value: float, where: str) -> float:
        if self.minimum is not None and value < self.minimum:
            raise self._error(where, value, f"must be {self.bounds}")
        if self.maximum is not None and value > self.maximum:
            raise self._error(where, value, f"must be {self.bounds}")
        return value

    def _check_text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise self._error(where, value, "must be text")
        if self.kind is Kind.CHOICE:
            if value not in self.choices:
                raise self._error(where, value, f"must be one of {', '.join(self.choices)}")
            return value
        if not value or "\x00" in value or not _is_unicode(value):
            raise self._error(where, value, "must be text that is not empty, is valid UTF-8 and has no NUL")
        return value

    def _error(self, where: str, value: object, rule: str) -> ConfigError:
        shown = repr(value)
        return ConfigError(f"{where} is {shown if len(shown) <= 80 else shown[:77] + '...'} but {rule}", self.name)


def settings_of(config_type: type[EngineConfig]) -> tuple[Setting, ...]:
    """The settings of a config class in the order of its fields."""
    info = inspect.type_info(config_type)
    assert isinstance(info, inspect.StructType)
    return tuple(_setting(field) for field in info.fields)


def _setting(field: inspect.Field) -> Setting:
    outer = field.type
    assert isinstance(outer, inspect.Metadata), f"{field.name} has no _meta(...) in its annotation"
    extra = outer.extra or {}
    item, is_optional, is_repeatable = _item_type(outer.type)
    kind, choices = _kind(item)
    return Setting(
        name=field.name,
        kind=kind,
        default=field.default,
        group=extra["group"],
        help=(outer.extra_json_schema or {})["description"],
        unit=extra["unit"],
        aliases=extra["aliases"],
        choices=choices,
        minimum=item.ge if isinstance(item, inspect.IntType | inspect.FloatType) else None,
        maximum=item.le if isinstance(item, inspect.IntType | inspect.FloatType) else None,
        is_optional=is_optional,
        is_repeatable=is_repeatable,
    )


def _item_type(declared: inspect.Type) -> tuple[inspect.Type, bool, bool]:
    """The type of one value, whether ``None`` is allowed, whether there may be several."""
    if isinstance(declared, inspect.VarTupleType):
        return declared.item_type, False, True
    if isinstance(declared, inspect.UnionType):
        (item,) = (member for member in declared.types if not isinstance(member, inspect.NoneType))
        return item, True, False
    return declared, False, False


def _kind(item: inspect.Type) -> tuple[Kind, tuple[str, ...]]:
    if isinstance(item, inspect.LiteralType):
        return Kind.CHOICE, tuple(str(value) for value in item.values)
    kinds: tuple[tuple[type[inspect.Type], Kind], ...] = (
        (inspect.BoolType, Kind.BOOL),
        (inspect.IntType, Kind.INT),
        (inspect.FloatType, Kind.FLOAT),
        (inspect.StrType, Kind.TEXT),
    )
    for declared, kind in kinds:
        if isinstance(item, declared):
            return kind, ()
    raise TypeError(f"a setting cannot be of type {type(item).__name__}")


def load_config(
    config_type: type[Config], flags: Mapping[str, str | Sequence[str]], environ: Mapping[str, str], file: Path | None
) -> Config:
    """One config from all sources; ``flags`` holds raw text by setting name.

    Variables and file may also hold settings of ``ServeConfig`` that ``config_type`` lacks, so that one
    file serves every verb; those are checked and then left out. Raises ``ConfigError``.
    """
    values = (file_values(file) if file else {}) | environ_values(environ)
    known = {setting.name: setting for setting in settings_of(config_type)}
    chosen = {name: value for name, value in values.items() if name in known}
    chosen |= {name: _parsed(known[name], raw, known[name].flag) for name, raw in flags.items()}
    return config_type(**chosen)  # type: ignore[arg-type]


def config_from_arguments(config_type: type[Config], arguments: Mapping[str, object]) -> Config:
    """One config from keyword arguments, as ``LLM(...)`` takes them. Raises ``ConfigError``."""
    known = {setting.name: setting for setting in settings_of(config_type)}
    for name in arguments:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}{suggestion(name, known)}", name)
    return config_type(**{name: known[name].check(value, name) for name, value in arguments.items()})  # type: ignore[arg-type]


def environ_values(environ: Mapping[str, str]) -> dict[str, Value]:
    """Checked values of all ``HEADRACE_*`` variables; lists are separated by commas."""
    known = {setting.variable: setting for setting in settings_of(ServeConfig)}
    values: dict[str, Value] = {}
    for variable, text in environ.items():
        if not variable.startswith(VARIABLE_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in known:
            hint = suggestion(variable, [*known, *OTHER_VARIABLES])
            raise ConfigError(f"unknown environment variable {variable}{hint}; unset it if it is not for headrace")
        setting = known[variable]
        raw = [item.strip() for item in text.split(",") if item.strip()] if setting.is_repeatable else text
        values[setting.name] = _parsed(setting, raw, variable)
    return values


def file_values(file: Path) -> dict[str, Value]:
    """Checked values of a TOML file whose top-level keys are settings, in any spelling a flag has."""
    settings = settings_of(ServeConfig)
    known = {
        spelling.replace("-", "_"): setting for setting in settings for spelling in (setting.name, *setting.aliases)
    }
    values: dict[str, Value] = {}
    for key, value in _read_toml(file).items():
        spelling = key.replace("-", "_")
        if spelling not in known:
            raise ConfigError(f"unknown setting {key!r} in {file}{suggestion(spelling, known)}")
        setting = known[spelling]
        if setting.name in values:
            raise ConfigError(f"{file} sets {setting.name} twice; {key} is another name for it", setting.name)
        values[setting.name] = setting.check(value, f"{key} in {file}")
    return values


def to_toml(config: EngineConfig) -> str:
    """``config`` as a file for ``--config`` that gives exactly ``config`` back.

    TOML has no null: a setting that is ``None`` is left out, which means ``None`` again.
    """
    import tomli_w

    values = msgspec.structs.asdict(config)
    lines: list[str] = []
    group = ""
    for setting in settings_of(type(config)):
        if setting.group != group:
            group = setting.group
            lines.append(f"{chr(10) if lines else ''}# {group}")
        value = values[setting.name]
        if value is None:
            lines.append(f"# {setting.name}: {setting.help}")
        else:
            lines.append(tomli_w.dumps({setting.name: value}).rstrip("\n"))
    return "\n".join(lines) + "\n"


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` when a known word is close, else empty."""
    from difflib import get_close_matches

    matches = get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _parsed(setting: Setting, raw: str | Sequence[str], where: str) -> Value:
    if isinstance(raw, str):
        return setting.parse(raw, where)
    return tuple(setting.parse(item, where) for item in raw)


def _read_toml(file: Path) -> dict[str, object]:
    if file.suffix in (".yaml", ".yml"):
        raise ConfigError(f"{file} is YAML but --config takes TOML; --print-config shows the form", "config")
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_CONFIG_FILE_BYTES + 1)
        if len(data) > MAX_CONFIG_FILE_BYTES:
            raise ConfigError(f"{file} has more than {MAX_CONFIG_FILE_BYTES} bytes; is it a config file?", "config")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; --config names a TOML file", "config") from error
    except (ValueError, RecursionError) as error:  # bad TOML, bad UTF-8, nesting without end
        raise ConfigError(f"{file} is not valid TOML: {error}", "config") from error


def _is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8; a command line of other bytes arrives as lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
