"""The source read as syntax: who imports whom, how big things are, what is called. Imports nothing it reads."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "headrace"


@dataclass(frozen=True)
class Import:
    """``importer`` names ``imported`` (both dotted); ``is_at_start`` if importing the first runs the second."""

    importer: str
    imported: str
    line: int
    is_at_start: bool


@dataclass(frozen=True)
class Module:
    """One file; ``name`` is dotted and a package's ``__init__`` has the package's name."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, source: str, path: Path | None = None) -> Module:
        return cls(name, path or Path(name.replace(".", "/") + ".py"), source, ast.parse(source))

    @property
    def room(self) -> str:
        """The package or file right under ours: ``headrace.engine.loop`` lies in ``engine``."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    def where(self, line: int) -> str:
        return f"{self.path}:{line}"


def read_modules(root: Path, shown_from: Path) -> list[Module]:
    """Every module under ``root``, the folder of our package; paths are shown relative to ``shown_from``."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(Module.parse(name, path.read_text(encoding="utf-8"), path.relative_to(shown_from)))
    return modules


def imports_of(module: Module) -> Iterator[Import]:
    """Every import statement, also inside functions and under ``TYPE_CHECKING``.

    ``from headrace.cli import serve`` imports both the package and, for all the syntax says, the module
    ``headrace.cli.serve``; what does not exist is for the caller to leave out.
    """
    for node, is_at_start in _walk(module.tree, is_at_start=True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module.name, alias.name, node.lineno, is_at_start)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.where(node.lineno)}: relative import; write the whole name"
            assert node.module is not None
            yield Import(module.name, node.module, node.lineno, is_at_start)
            for alias in node.names:
                yield Import(module.name, f"{node.module}.{alias.name}", node.lineno, is_at_start)


def _walk(node: ast.AST, is_at_start: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, is_at_start
        runs_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(child)
        yield from _walk(child, is_at_start and not runs_later)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def internal_imports(modules: list[Module]) -> list[Import]:
    """Imports between our own modules, the most precise name of each."""
    names = {module.name for module in modules}
    found = []
    for module in modules:
        hits = [edge for edge in imports_of(module) if edge.imported in names and edge.imported != module.name]
        precise = {(edge.line, edge.imported) for edge in hits}
        for edge in hits:
            is_covered = any(line == edge.line and other.startswith(edge.imported + ".") for line, other in precise)
            if not is_covered:
                found.append(edge)
    return found


def foreign_imports(module: Module) -> Iterator[Import]:
    """Imports of neither ours nor the standard library, by top-level name."""
    for edge in imports_of(module):
        top = edge.imported.partition(".")[0]
        if top != PACKAGE and top not in sys.stdlib_module_names:
            yield Import(module.name, top, edge.line, edge.is_at_start)


def find_cycle(edges: list[Import]) -> list[str]:
    """Some cycle of modules as a list that ends where it began, or an empty list."""
    targets: dict[str, set[str]] = {}
    for edge in edges:
        targets.setdefault(edge.importer, set()).add(edge.imported)
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for target in sorted(targets.get(name, ())):
            if cycle := visit(target):
                return cycle
        path.pop()
        done.add(name)
        return []

    for name in sorted(targets):
        if cycle := visit(name):
            return cycle
    return []


def loaded_at_start(name: str, modules: list[Module]) -> dict[str, str]:
    """Everything that importing module ``name`` runs, ours and foreign, each with its importer."""
    by_name = {module.name: module for module in modules}
    importer_of = {name: name}
    pending = [name]
    while pending:
        current = pending.pop()
        if current not in by_name:
            continue
        parts = current.split(".")
        found = [".".join(parts[:end]) for end in range(1, len(parts))]
        found += [edge.imported for edge in imports_of(by_name[current]) if edge.is_at_start]
        for imported in found:
            target = imported if imported in by_name else imported.partition(".")[0]
            if target not in importer_of:
                importer_of[target] = current
                pending.append(target)
    return importer_of


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments a caller may have to think of; ``self`` and ``cls`` are not among them."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if positional and positional[0] in ("self", "cls"):
        positional = positional[1:]
    stars = [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    return len(positional) + len(arguments.kwonlyargs) + len(stars)


def num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
