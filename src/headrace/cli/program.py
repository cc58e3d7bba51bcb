"""``headrace program``: look at programs of many calls without running them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from headrace.core.errors import ConfigError
from headrace.program.function import Function
from headrace.program.graph import as_svg, as_text
from headrace.program.ir import to_json


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="headrace program", description="Look at a program of many calls.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    show = verbs.add_parser("show", help="trace a program and show its graph, with shared prefixes marked")
    show.add_argument("program", metavar="FILE:NAME", help="a Python file and the name of a @function in it")
    show.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE", help="give an argument; repeat")
    show.add_argument("--svg", metavar="FILE", help="write a drawing to FILE")
    show.add_argument("--json", metavar="FILE", help="write the program as data to FILE, as /v1/programs takes it")
    return _show(parser.parse_args(argv))


def _show(arguments: argparse.Namespace) -> int:
    program = load(arguments.program).trace(**dict(_argument(text) for text in arguments.argument))
    print(as_text(program))
    if arguments.svg:
        Path(arguments.svg).write_text(as_svg(program), encoding="utf-8")
    if arguments.json:
        Path(arguments.json).write_bytes(to_json(program))
    return 0


def load(reference: str) -> Function:
    """The program that ``FILE:NAME`` names. Runs the file, as importing it would. Raises ``ConfigError``."""
    file, colon, name = reference.rpartition(":")
    if not colon or not file or not name:
        raise ConfigError(f"{reference!r} names no program; write FILE:NAME, such as judge.py:judge", "program")
    values = vars(_imported(Path(file)))
    found = values.get(name)
    if not isinstance(found, Function):
        names = [each for each, value in values.items() if isinstance(value, Function)]
        raise ConfigError(f"{file} has no program {name!r}; it has {', '.join(names) or 'none'}", "program")
    return found


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", "program")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", "program")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _argument(text: str) -> tuple[str, object]:
    """``name=value``; a value that is JSON is read as such."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--argument {text!r} must be NAME=VALUE", "argument")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
