"""The page of error texts is current, and the operator's page knows every code that an answer may carry."""

from __future__ import annotations

import ast
import re

from headrace.server.errors import _ENGINE_CODES, status_refusal
from tests.error_texts import PAGE, ROOT, error_texts, render
from tests.source_tree import Module, read_modules

_CODE_PLACE = {"refusal": 2, "ErrorDetail": 3}
OPERATIONS = ROOT / "docs" / "operations.md"
NEVER_SENT = {"request_aborted"}
"""Of clients that are gone: only the log sees it."""


def test_the_page_is_what_the_source_says() -> None:
    assert PAGE.read_text() == render(), "run: make docs"


def test_texts_are_found_wherever_they_are_raised() -> None:
    source = """
raise InvalidRequest(f"n is {self.n} but at most {limit} may be; lower it", "n")
raise refusal(415, "the body must be JSON; send JSON", "unsupported_media_type")
check_limit("tools", "tools has {} entries", 5, "max_tools", 4)
"""
    found = error_texts([Module.parse("headrace.server.x", source)])
    assert [each.text for each in found["refusal"]] == ["the body must be JSON; send JSON"]
    assert [each.text for each in found["InvalidRequest"]] == [
        "n is {n} but at most {limit} may be; lower it",
        "tools has {} entries but at most {limit} are allowed here; send less, or let the operator raise --max-tools",
    ]


def codes() -> set[str]:
    """Words that the server's error bodies carry as their code."""
    found: set[object] = {*_ENGINE_CODES.values(), *(status_refusal(each).reply.detail.code for each in (404, 405))}
    for module in read_modules(ROOT / "src" / "headrace", ROOT):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and (place := _CODE_PLACE.get(ast.unparse(node.func))):
                found |= {each.value for each in node.args[place : place + 1] if isinstance(each, ast.Constant)}
    return {str(word) for word in found} - NEVER_SENT


def test_every_code_has_its_remedy() -> None:
    found = codes()
    assert {"invalid_value", "overloaded", "not_found", "request_quarantined", "headers_too_large"} <= found
    page = OPERATIONS.read_text()
    assert not [code for code in sorted(found) if f"`{code}`" not in page]


def test_the_operators_page_tells_of_no_code_that_is_not() -> None:
    table = OPERATIONS.read_text().partition("## Errors and remedies")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    assert {word for cell in first_cells for word in re.findall(r"`([a-z_]+)`", cell)} <= codes()
