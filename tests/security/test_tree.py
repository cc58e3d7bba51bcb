"""SEC-11 and SEC-32: what the tree may not contain, and what it may depend on."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.lock import LOCK, MANY_BUILDS
from tests.source_tree import Module, imports_of
from tests.test_architecture import BANNED_MODULES, banned_calls

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "examples")
PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MAY_PICKLE = {"tests/security/test_models.py"}
"""The one that shows that nobody else does."""

MAX_RUNTIME_DEPENDENCIES = 15


def modules(paths: list[Path]) -> list[Module]:
    return [Module.parse(str(path), path.read_text(encoding="utf-8"), path.relative_to(ROOT)) for path in paths]


def test_sec_11_nothing_in_the_tree_unpickles_evaluates_or_runs_a_shell() -> None:
    assert len(PYTHON) > 500
    found = banned_calls([each for each in modules(PYTHON) if str(each.path) not in MAY_PICKLE])
    assert not found, "\n".join(found)


def test_sec_11_no_dependency_that_pickles_is_imported_anywhere() -> None:
    banned = {*BANNED_MODULES, "yaml", "diskcache", "outlines", "litellm", "numpy.lib.npyio"}
    found = [
        f"{module.where(edge.line)}: {edge.imported}"
        for module in modules(PYTHON)
        if str(module.path) not in MAY_PICKLE
        for edge in imports_of(module)
        if edge.imported in banned or edge.imported.partition(".")[0] in banned
    ]
    assert not found, "\n".join(found)


def test_sec_11_no_module_is_imported_by_a_name_from_data() -> None:
    """Packages that load their own parts late are the exception: they choose from a table."""
    found = [
        module.where(node.lineno)
        for module in modules(sorted((ROOT / "src").rglob("*.py")))
        if module.path.name != "__init__.py"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module")
    ]
    assert not found, "\n".join(found)


def test_sec_32_few_dependencies_and_none_unpinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= MAX_RUNTIME_DEPENDENCIES
    assert not [each for each in project["dependencies"] if "litellm" in each or "@" in each or "git+" in each]


def locked() -> dict[str, tuple[str, list[str]]]:
    """Package, version and digests of each entry of the lock."""
    entries: dict[str, tuple[str, list[str]]] = {}
    for block in re.split(r"\n(?=\S)", LOCK.read_text()):
        if block.startswith("#") or not block.strip():
            continue
        name = re.match(r"([A-Za-z0-9._-]+)==(\S+)", block)
        assert name, f"not pinned: {block[:80]!r}"
        entries[_normal(name[1])] = (name[2], re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block))
    return entries


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_sec_32_the_lock_names_a_digest_for_everything() -> None:
    entries = locked()
    assert len(entries) > 40
    assert not [name for name, (_, digests) in entries.items() if not digests]
    assert "litellm" not in entries


@pytest.mark.parametrize("group", ["dependencies", "test", "torch"])
def test_sec_32_the_lock_covers_what_is_declared(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    names = [_normal(re.match(r"[A-Za-z0-9._-]+", each)[0]) for each in declared]  # type: ignore[index]
    assert [name for name in names if name not in locked()] == [name for name in names if name == MANY_BUILDS]


def test_sec_32_the_lock_agrees_with_the_constraints() -> None:
    entries = locked()
    pinned = re.findall(r"^([a-z0-9._-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    for name, version in pinned:
        if name == MANY_BUILDS:
            continue
        assert entries[_normal(name)][0] == version


def test_sec_32_no_text_from_outside_reaches_a_shell_of_ci() -> None:
    for path in [ROOT / ".ci" / "run", *(ROOT / ".github").rglob("*.y*ml")]:
        assert "github." not in path.read_text()
