"""The house stands as it was drawn: imports point down, dependencies live at their address, nothing outgrows
its budget, and calls that have hurt others do not occur.

Each rule is a function from modules to violations. It is run on planted violations, so that a rule that has
gone blind fails too, and then on the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.source_tree import (
    Module,
    find_cycle,
    foreign_imports,
    imports_of,
    internal_imports,
    loaded_at_start,
    num_lines,
    num_parameters,
    read_modules,
)

ROOT = Path(__file__).parents[1]
MODULES = read_modules(ROOT / "src" / "headrace", ROOT)

_MEANS = {"cache", "grammar", "checkpoint", "model", "kernels", "native"}
_ENGINE = {"core", *_MEANS, "scheduler", "executor"}
_SURFACE = {*_ENGINE, "engine", "cluster"}

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "cache": {"core"},
    "grammar": {"core"},
    "checkpoint": {"core"},
    "kernels": {"core"},
    "native": {"core"},
    "model": {"core", "kernels"},
    "scheduler": {"core", "cache"},
    "executor": {"core", "model", "kernels", "native", "checkpoint"},
    "engine": _ENGINE,
    "cluster": {"core", "engine"},
    "program": {"core", "engine"},
    "llm": {*_SURFACE, "program"},
    "server": {*_SURFACE, "program"},
    "sim": _SURFACE,
    "cli": {*_SURFACE, "llm", "server", "program", "sim", "bench"},
    "bench": {*_SURFACE, "llm", "server", "program", "sim"},
    "dashboard": set(),
    "": {"core", "llm"},  # headrace/__init__.py: the public names
}
"""Room -> the rooms it may import; a room always may import itself. The table of docs/architecture.md."""

ALSO_MAY_IMPORT = {("cluster", "headrace.scheduler.cost_model")}

CONCRETE_EXECUTORS = {"torch_executor", "native_executor", "tensor_parallel"}
EXECUTOR_CHOOSER = "headrace.engine.factory"

ADDRESSES: dict[str, tuple[str, ...]] = {
    "numpy": ("",),
    "msgspec": ("",),
    "torch": ("model.", "kernels.", "executor.torch_executor", "executor.tensor_parallel"),
    "triton": ("kernels.",),
    "starlette": ("server.", "dashboard."),
    "uvicorn": ("server.", "dashboard."),
    "httptools": ("server.", "bench.http_client"),
    "uvloop": ("server.", "bench."),
    "ray": ("cluster.ray",),
    "tokenizers": ("engine.tokenizer",),
    "jinja2": ("engine.",),
    "prometheus_client": ("engine.",),
    "llguidance": ("grammar.",),
    "huggingface_hub": ("checkpoint.",),
    "rich": ("cli.",),
    "tomli_w": ("core.settings",),
    "httpx": ("program.api_client",),
}
"""Foreign package -> where it may be imported: prefixes (ending in a dot) or whole names of modules."""

LIGHT_ENTRIES = ("headrace", "headrace.cli.main", "headrace.cli.flags", "headrace.core.settings")
HEAVY = {"numpy", "torch", "tokenizers", "starlette", "uvicorn", "jinja2", "prometheus_client", "rich", "asyncio"}

MAX_FILE_LINES = 400
MAX_CLASS_LINES = 250
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 6
UNBUDGETED_ROOMS = {"kernels"}

BANNED_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
BANNED_CALLS = {
    "eval",
    "exec",
    "__import__",
    "os.system",
    "os.popen",
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "numpy.load",
    "np.load",
    "tempfile.mktemp",
}

_LOOKS = re.compile(
    r"(is|has|can)[a-z_]*|isinstance|len|all|any|min|max|sum|zip|set|range|type|sorted|find|fits|startswith|[A-Z]\w*"
)
"""Names of calls that change nothing, in an assert."""

Rule = Callable[[list[Module]], list[str]]


def upward_or_sideways_imports(modules: list[Module]) -> list[str]:
    by_name = {module.name: module for module in modules}
    violations = []
    for edge in internal_imports(modules):
        importer, imported = by_name[edge.importer], by_name[edge.imported]
        is_allowed = imported.room == importer.room or imported.room in MAY_IMPORT[importer.room]
        if not is_allowed and (importer.room, edge.imported) not in ALSO_MAY_IMPORT:
            violations.append(f"{importer.where(edge.line)}: {importer.room} may not import {edge.imported}")
    return violations


def rooms_without_a_layer(modules: list[Module]) -> list[str]:
    return sorted({f"room {module.room} is not in the table" for module in modules if module.room not in MAY_IMPORT})


def executors_chosen_elsewhere(modules: list[Module]) -> list[str]:
    by_name = {module.name: module for module in modules}
    return [
        f"{by_name[edge.importer].where(edge.line)}: only {EXECUTOR_CHOOSER} may import {edge.imported}"
        for edge in internal_imports(modules)
        if edge.imported.rpartition(".")[2] in CONCRETE_EXECUTORS
        and by_name[edge.importer].room not in ("executor", "sim")
        and edge.importer != EXECUTOR_CHOOSER
    ]


def import_cycles(modules: list[Module]) -> list[str]:
    cycle = find_cycle(internal_imports(modules))
    return [" -> ".join(cycle)] if cycle else []


def misplaced_dependencies(modules: list[Module]) -> list[str]:
    violations = []
    for module in modules:
        inside = module.name.partition(".")[2]
        for edge in foreign_imports(module):
            places = ADDRESSES.get(edge.imported, ())
            if not any(
                inside.startswith(place) if place.endswith(".") or not place else inside == place for place in places
            ):
                violations.append(f"{module.where(edge.line)}: {edge.imported} may not be imported here")
    return sorted(set(violations))


def heavy_starts(modules: list[Module]) -> list[str]:
    violations = []
    for entry in LIGHT_ENTRIES:
        importer_of = loaded_at_start(entry, modules)
        violations += [f"{entry} loads {name} through {importer_of[name]}" for name in sorted(HEAVY & set(importer_of))]
    return violations


def broken_size_budgets(modules: list[Module]) -> list[str]:
    violations = []
    for module in modules:
        if module.room in UNBUDGETED_ROOMS:
            continue
        length = len(module.source.splitlines())
        if length > MAX_FILE_LINES:
            violations.append(f"{module.path}: {length} lines > {MAX_FILE_LINES}")
        for node in ast.walk(module.tree):
            violations += [f"{module.where(node.lineno)}: {text}" for text in _oversize(node)]  # type: ignore[attr-defined]
    return violations


def _oversize(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ClassDef) and num_lines(node) > MAX_CLASS_LINES:
        return [f"class {node.name} has {num_lines(node)} lines > {MAX_CLASS_LINES}"]
    found = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if num_lines(node) > MAX_FUNCTION_LINES:
            found.append(f"function {node.name} has {num_lines(node)} lines > {MAX_FUNCTION_LINES}")
        if num_parameters(node) > MAX_PARAMETERS:
            found.append(f"function {node.name} has {num_parameters(node)} parameters > {MAX_PARAMETERS}")
    return found


def banned_calls(modules: list[Module]) -> list[str]:
    violations = []
    for module in modules:
        imported = {(edge.line, edge.imported.partition(".")[0]) for edge in imports_of(module)}
        violations += [f"{module.where(line)}: import of {top}" for line, top in imported if top in BANNED_MODULES]
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            if (called := ast.unparse(node.func)) in BANNED_CALLS:
                violations.append(f"{module.where(node.lineno)}: call of {called}")
            if any(keyword.arg == "shell" and ast.unparse(keyword.value) != "False" for keyword in node.keywords):
                violations.append(f"{module.where(node.lineno)}: call with shell=")
    return violations


def asserts_that_do_something(modules: list[Module]) -> list[str]:
    """Under ``python -O`` an assert is not run: what it calls may only look."""
    violations = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assert):
                calls = [ast.unparse(each.func) for each in ast.walk(node.test) if isinstance(each, ast.Call)]
                acting = [call for call in calls if not _LOOKS.fullmatch(call.rpartition(".")[2])]
                violations += [f"{module.where(node.lineno)}: assert of {call}, which may act" for call in acting]
    return violations


def undocumented_modules(modules: list[Module]) -> list[str]:
    return [f"{m.path}: no docstring" for m in modules if m.source.strip() and not ast.get_docstring(m.tree)]


RULES: tuple[Rule, ...] = (
    rooms_without_a_layer,
    upward_or_sideways_imports,
    executors_chosen_elsewhere,
    import_cycles,
    misplaced_dependencies,
    heavy_starts,
    broken_size_budgets,
    banned_calls,
    asserts_that_do_something,
    undocumented_modules,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_has_no(rule: Rule) -> None:
    assert len(MODULES) > 20
    violations = rule(MODULES)
    assert not violations, "\n" + "\n".join(violations)


def plant(**sources: str) -> list[Module]:
    """Modules by name below our package, ``__`` for a dot; the rooms they lie in exist."""
    rooms = {name.partition("__")[0] for name in sources} | {""}
    modules = [Module.parse(f"headrace.{room}".rstrip("."), '"""Doc."""') for room in rooms if room not in sources]
    return modules + [Module.parse("headrace." + name.replace("__", "."), text) for name, text in sources.items()]


def lines(template: str, count: int) -> str:
    return "\n".join(template for _ in range(count))


PLANTED: list[tuple[Rule, list[Module]]] = [
    (rooms_without_a_layer, plant(attic__box="")),
    (upward_or_sideways_imports, plant(core__a="from headrace.cache.b import x", cache__b="")),
    (upward_or_sideways_imports, plant(core__a="from headrace.cache import b", cache__b="")),
    (upward_or_sideways_imports, plant(core__a="import headrace.cache.b", cache__b="")),
    (upward_or_sideways_imports, plant(scheduler__a="def f():\n  from headrace.executor.b import x", executor__b="")),
    (upward_or_sideways_imports, plant(cache__a="from headrace.checkpoint.b import x", checkpoint__b="")),
    (upward_or_sideways_imports, plant(server__a="from headrace.cli.b import x", cli__b="")),
    (upward_or_sideways_imports, plant(llm__a="from headrace.server import b", server__b="")),
    (upward_or_sideways_imports, plant(cluster__a="from headrace.scheduler.b import x", scheduler__b="")),
    (
        upward_or_sideways_imports,
        plant(core__a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from headrace.llm.b import x", llm__b=""),
    ),
    (
        executors_chosen_elsewhere,
        plant(engine__a="from headrace.executor.torch_executor import T", executor__torch_executor=""),
    ),
    (import_cycles, plant(core__a="from headrace.core.b import x", core__b="from headrace.core import a")),
    (import_cycles, plant(core__a="def f():\n  import headrace.core.b", core__b="import headrace.core.a")),
    (misplaced_dependencies, plant(engine__a="import torch")),
    (misplaced_dependencies, plant(executor__torch_executor_two="import torch.nn")),
    (misplaced_dependencies, plant(engine__chat="from tokenizers import Tokenizer")),
    (misplaced_dependencies, plant(core__a="import leftpad")),
    (heavy_starts, plant(core__settings="import numpy as np")),
    (heavy_starts, plant(core__settings="from headrace.core.b import x", core__b="class C:\n  import torch")),
    (heavy_starts, plant(cli__main="", cli__flags="import headrace.core.b", core="import numpy", core__b="")),
    (broken_size_budgets, plant(core__a=lines("x = 1", 401))),
    (broken_size_budgets, plant(core__a="def f():\n" + lines("  x = 1", 50))),
    (broken_size_budgets, plant(core__a="class C:\n" + lines("  x = 1", 250))),
    (broken_size_budgets, plant(core__a="class C:\n  async def f(self, a, b, c, *, d, e, f, g): ...")),
    (broken_size_budgets, plant(core__a="def f(a, b, c, d, e, *f, **g): ...")),
    (banned_calls, plant(core__a="import pickle")),
    (banned_calls, plant(core__a="def f():\n  from marshal import loads")),
    (banned_calls, plant(core__a="eval('1')")),
    (banned_calls, plant(core__a="import os\nos.system('ls')")),
    (banned_calls, plant(core__a="run('ls', shell=True)")),
    (banned_calls, plant(model__a="import torch\ntorch.load('x.bin')")),
    (asserts_that_do_something, plant(core__a="assert matcher.accept(1)")),
    (asserts_that_do_something, plant(core__a="assert (x := take()) is not None")),
    (undocumented_modules, plant(core__a="x = 1")),
]


@pytest.mark.parametrize(("rule", "modules"), PLANTED, ids=lambda part: getattr(part, "__name__", ""))
def test_a_planted_violation_is_found_by(rule: Rule, modules: list[Module]) -> None:
    assert len(rule(modules)) == 1


ALLOWED: list[tuple[Rule, list[Module]]] = [
    (upward_or_sideways_imports, plant(cache__a="from headrace.core.b import x", core__b="")),
    (upward_or_sideways_imports, plant(core__a="from headrace.core.b import x", core__b="")),
    (
        upward_or_sideways_imports,
        plant(cluster__a="from headrace.scheduler import cost_model", scheduler__cost_model=""),
    ),
    (
        executors_chosen_elsewhere,
        plant(engine__factory="import headrace.executor.torch_executor", executor__torch_executor=""),
    ),
    (misplaced_dependencies, plant(model__a="import torch, numpy, os.path")),
    (misplaced_dependencies, plant(executor__torch_executor="import torch")),
    (heavy_starts, plant(core__settings="def f():\n  import numpy")),
    (broken_size_budgets, plant(core__a=lines("x = 1", 400))),
    (broken_size_budgets, plant(core__a="class C:\n  def f(self, a, b, c, *, d, e, f): ...")),
    (asserts_that_do_something, plant(core__a="assert isinstance(x, int) and len(x) > 0 and kv.fits(3)")),
    (banned_calls, plant(core__a="run('ls', shell=False)\nmodel.eval()\nsafe.load('x')")),
]


@pytest.mark.parametrize(("rule", "modules"), ALLOWED, ids=lambda part: getattr(part, "__name__", ""))
def test_what_is_allowed_passes(rule: Rule, modules: list[Module]) -> None:
    assert rule(modules) == []
