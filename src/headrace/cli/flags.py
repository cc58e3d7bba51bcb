"""Command lines from settings: argparse flags of a config class, and parsers that explain a typo.

Owns the spelling of flags (``--no-`` for booleans, underscores for dashes, other servers' names) and the
help text. What a value may be is ``core/settings.py``'s business; flags arrive there as raw text.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.settings import Kind, Setting, load_config, settings_of, suggestion, to_toml

Config = TypeVar("Config", bound=EngineConfig)

_METAVARS = {Kind.INT: "N", Kind.FLOAT: "X", Kind.TEXT: "TEXT"}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ``ConfigError`` and name the flag that was meant."""

    def __init__(self, verb: str, description: str, positionals: str = "") -> None:
        super().__init__(
            prog=f"headrace {verb}",
            usage=f"headrace {verb} {positionals} [flags]".replace("  ", " "),
            description=description,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            epilog="--debug anywhere shows the traceback of an error.",
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Flags and positionals in any order; raises ``ConfigError`` for what is not known."""
        arguments, extra = self.parse_known_intermixed_args(_with_dashes(argv))
        for word in extra:
            if word.startswith("-") and word != "--":
                flag = word.partition("=")[0]
                known = [option for action in self._actions for option in action.option_strings]
                raise ConfigError(f"unknown flag {flag}{suggestion(flag, known)}")
        if extra:
            raise ConfigError(f"unexpected argument {extra[0]!r}; see {self.prog} --help")
        return arguments


class _HelpFormatter(argparse.HelpFormatter):
    """Wider columns than argparse's, so that our longest flags keep their help beside them."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def add_config_flags(parser: Parser, config_type: type[EngineConfig]) -> None:
    """MODEL, ``--config``, ``--print-config`` and one flag per setting, grouped as the settings are."""
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="what to load; like --model")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="TOML file of settings; flags and HEADRACE_* variables override it"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in effect as such a file (with keys) and exit"
    )
    for group, settings in itertools.groupby(settings_of(config_type), key=lambda setting: setting.group):
        flags = parser.add_argument_group(group)
        for setting in settings:
            _add_flag(flags, setting)


def read_config(config_type: type[Config], arguments: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The config that flags, variables and file give together. Raises ``ConfigError``."""
    given = vars(arguments)
    raw: dict[str, str | list[str]] = {}
    for setting in settings_of(config_type):
        if setting.name in given:
            value = given[setting.name]
            raw[setting.name] = setting.shown(value) if setting.kind is Kind.BOOL else value
    if arguments.model_argument is not None:
        if raw.get("model", arguments.model_argument) != arguments.model_argument:
            raise ConfigError(f"MODEL is {arguments.model_argument} but --model is {raw['model']}; give one", "model")
        raw["model"] = arguments.model_argument
    return load_config(config_type, raw, environ, arguments.config)


def print_config(config: EngineConfig) -> int:
    sys.stdout.write(to_toml(config))
    return 0


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    """The flag with its help, and its aliases without: they are for command lines made for other servers."""
    aliases = [f"--{alias}" for alias in setting.aliases]
    for spellings, help_text in (([setting.flag], _help(setting)), (aliases, argparse.SUPPRESS)):
        if not spellings:
            continue
        if setting.kind is Kind.BOOL:
            group.add_argument(
                *spellings,
                dest=setting.name,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=help_text,
            )
        else:
            group.add_argument(
                *spellings,
                dest=setting.name,
                action="append" if setting.is_repeatable else "store",
                default=argparse.SUPPRESS,
                metavar=_metavar(setting),
                help=help_text,
            )


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "{" + ",".join(setting.choices) + "}"
    return "SIZE" if setting.unit == "bytes" else _METAVARS[setting.kind]


def _help(setting: Setting) -> str:
    notes = [setting.bounds] if setting.bounds else []
    if setting.default not in (None, ()):
        notes.append(f"default: {setting.shown(setting.default)}")
    text = f"{setting.help} ({'; '.join(notes)})" if notes else setting.help
    return text.replace("%", "%%")


def _with_dashes(argv: Sequence[str]) -> list[str]:
    """``--max_num_seqs=4`` as ``--max-num-seqs=4``: other servers spell flags either way."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    for position, word in enumerate(words[:end]):
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            words[position] = flag.replace("_", "-") + equals + value
    return words
