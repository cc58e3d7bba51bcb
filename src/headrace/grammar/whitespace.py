"""The blanks a JSON answer may have: bounded by default, so that no model can fill its answer with them.

By default one space may follow each colon and comma, and nothing else is blank. A client may choose another
regex, which then holds wherever JSON allows blanks.
"""

from __future__ import annotations

import re

from headrace.core.errors import InvalidRequest

_BLANKS = r" \t\n\r"
_TOKEN = re.compile(
    r"\[(?:\\[snrtfv]|\\x20|\\x0[9aAdD]|[ \t\n\r])+\]"  # a class of blanks
    r"|\\[snrt]|\\x20|\\x0[9aAdD]|[ \t\n\r]"  # one blank
    r"|\{\d+(?:,\d*)?\}|[?*+|()]|\(\?:"
)
MAX_PATTERN_CHARS = 200


def whitespace_options(pattern: str | None) -> dict[str, object]:
    """The library's options for a ``whitespace_pattern``; ``None`` is the default policy.

    Raises ``InvalidRequest`` for a pattern that could match anything else than JSON's four blanks.
    """
    if pattern is None:
        return {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
    if pattern == "":
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": _checked(pattern)}


def _checked(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise _refusal(f"has {len(pattern)} characters but at most {MAX_PATTERN_CHARS} are allowed")
    position = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            raise _refusal(
                f"is {pattern!r}, which at column {position + 1} has more than blanks; use spaces, \\t, \\n, \\r, \\s, "
                "classes of them and ? * + {m,n} | ( )"
            )
        position = token.end()
    try:
        re.compile(pattern)
    except re.error as error:
        raise _refusal(f"is {pattern!r}, which is no regex: {error}") from None
    return _without_s(pattern)


def _without_s(pattern: str) -> str:
    r"""``\s`` as JSON's blanks: a regex engine's own has more."""
    in_class = re.sub(r"\[([^\]]*)\]", lambda found: f"[{found[1].replace(chr(92) + 's', _BLANKS)}]", pattern)
    return re.sub(r"\\s", f"[{_BLANKS}]", in_class)


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"whitespace_pattern {what}", "whitespace_pattern")
