"""The text of Lark grammars: counting a client's rules, and quoting what goes into ours."""

from __future__ import annotations

import json
import re

from headrace.core.errors import InvalidRequest

_RULE = re.compile(r"^[ \t]*[?!]*[A-Za-z_][A-Za-z0-9_]*(?:\[[^\]\n]*\])?[ \t]*:", re.MULTILINE)


def quoted(text: str) -> str:
    """``text`` as a Lark string literal that matches exactly it."""
    return json.dumps(text, ensure_ascii=False)


def check_rules(lark: str, max_rules: int) -> None:
    """Refuse a grammar without a rule ``start``, or with more rules than the library's recursion can take."""
    num_rules = sum(1 for _ in _RULE.finditer(lark))
    if num_rules > max_rules:
        raise InvalidRequest(f"the grammar has {num_rules} rules but at most {max_rules} are allowed; merge some")
    if not re.search(r"^[ \t]*[?!]*start[ \t]*(?:\[[^\]\n]*\])?[ \t]*:", lark, re.MULTILINE):
        raise InvalidRequest("the grammar has no rule 'start:'; Lark begins there (EBNF with 'root ::=' is grammar)")
