"""Every advisory class that applies to a text engine has a test named after it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

WANTED = {*(f"{number:02d}" for number in range(1, 33)), "12b"}


def test_there_is_a_test_for_each_of_the_thirty_three() -> None:
    found: set[str] = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (named := re.match(r"test_sec_(\d\db?)_", node.name)):
                found.add(named[1])
    assert found == WANTED
