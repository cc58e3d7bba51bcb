"""EBNF in GBNF's dialect, translated to Lark exactly and without a scanner.

A Lark lexer takes the longest match, a context-free grammar does not: ``ws ::= [ \\n]*`` before ``"\\n"`` must be able
to leave the newline. So no repetition is ever put into a terminal: every character class is a terminal of one
character, and everything else is rules. Anything with a rule ``root`` is GBNF here; the dialect is never guessed.
"""

from __future__ import annotations

import re

from headrace.core.errors import InvalidRequest
from headrace.grammar.json_text import caret
from headrace.grammar.rules import quoted

MAX_REPETITIONS = 2000

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t\r\n]|\#[^\n]*)+)
    |(?P<name>[A-Za-z][A-Za-z0-9_-]*)(?P<define>[ \t]*(?:::=))?
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<chars>\[\^?(?:[^\]\\\n]|\\.)*\])
    |(?P<count>\{[ ]*\d*[ ]*(?:,[ ]*\d*[ ]*)?\})
    |(?P<sign>[()|*+?.])""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-", "^": "^"}


def ebnf_to_lark(source: str, max_rules: int) -> str:
    """Translate a grammar. Raises ``InvalidRequest`` with line, column and a caret."""
    return _Translator(source, max_rules).translate()


class _Translator:
    def __init__(self, source: str, max_rules: int) -> None:
        self._source = source
        self._max_rules = max_rules
        self._position = 0
        self._rules: dict[str, str] = {}
        self._used: dict[str, int] = {}  # name -> where it was first used
        self._classes: dict[str, str] = {}

    def translate(self) -> str:
        self._skip_blanks()
        while self._position < len(self._source):
            self._rule()
        if "root" not in self._rules:
            raise InvalidRequest("the grammar has no rule 'root ::='; EBNF begins there (Lark with 'start:' is lark)")
        for name, position in self._used.items():
            if name not in self._rules:
                raise self._error(f"the rule {name!r} is not defined", position)
        lines = [f"start: {_rule_name('root')}"]
        lines += [f"{_rule_name(name)}: {body}" for name, body in self._rules.items()]
        return "\n".join(lines + [f"{name}: {regex}" for regex, name in self._classes.items()])

    def _rule(self) -> None:
        start = self._position
        token = self._next()
        if token is None or not token["define"]:
            raise self._error("a rule begins with 'name ::='", start)
        name = token["name"]
        if name in self._rules:
            raise self._error(f"the rule {name!r} is defined twice", start)
        if len(self._rules) >= self._max_rules:
            raise InvalidRequest(f"the grammar has more than {self._max_rules} rules; merge some")
        self._rules[name] = ""  # so that it counts as defined while its body is read
        self._skip_blanks()
        self._rules[name] = self._alternatives(depth=0)

    def _alternatives(self, depth: int) -> str:
        if depth > 200:
            raise self._error("parentheses are nested deeper than 200 levels", self._position)
        branches = [self._sequence(depth)]
        while (token := self._peek()) is not None and token["sign"] == "|":
            self._next()
            branches.append(self._sequence(depth))
        return " | ".join(branches)

    def _sequence(self, depth: int) -> str:
        items = []
        while (token := self._peek()) is not None and not token["define"] and token["sign"] not in ("|", ")"):
            items.append(self._repeated(depth))
        return " ".join(items) if items else '""'

    def _repeated(self, depth: int) -> str:
        item = self._atom(depth)
        while (token := self._peek()) is not None:
            if token["sign"] in ("*", "+", "?"):
                item = f"({item}){token['sign']}"
            elif token["count"]:
                item = f"({item}){self._count(token['count'])}"
            else:
                break
            self._next()
        return item

    def _atom(self, depth: int) -> str:
        start = self._position
        token = self._next()
        assert token is not None
        if token["name"]:
            self._used.setdefault(token["name"], start)
            return _rule_name(token["name"])
        if token["text"]:
            return quoted(self._unescaped(token["text"][1:-1], start + 1))
        if token["chars"]:
            return self._class(f"/{self._class_regex(token['chars'], start)}/")
        if token["sign"] == ".":
            return self._class("/(.|\\n)/")
        if token["sign"] == "(":
            inner = self._alternatives(depth + 1)
            closing = self._next()
            if closing is None or closing["sign"] != ")":
                raise self._error("a parenthesis is not closed", start)
            return f"({inner})"
        raise self._error("a text, a class, a rule or a parenthesis is expected", start)

    def _class(self, regex: str) -> str:
        return self._classes.setdefault(regex, f"C{len(self._classes)}")

    def _class_regex(self, chars: str, start: int) -> str:
        is_negated = chars.startswith("[^")
        body = chars[2:-1] if is_negated else chars[1:-1]
        parts = re.findall(r"\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\.|.", body, re.DOTALL)
        shown = [
            part if part == "-" and 0 < i < len(parts) - 1 else self._class_char(part, start)
            for i, part in enumerate(parts)
        ]
        if not shown:
            raise self._error("a character class is empty", start)
        return f"[{'^' if is_negated else ''}{''.join(shown)}]"

    def _class_char(self, part: str, start: int) -> str:
        char = self._unescaped(part, start)
        return f"\\x{{{ord(char):X}}}"

    def _unescaped(self, text: str, start: int) -> str:
        def plain(found: re.Match[str]) -> str:
            escape = found[1]
            if escape[0] in "xuU" and len(escape) > 1:
                return chr(int(escape[1:], 16))
            if escape in _ESCAPES:
                return _ESCAPES[escape]
            raise self._error(f"the escape \\{escape} is not known", start + found.start())

        return re.sub(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", plain, text, flags=re.DOTALL)

    def _count(self, text: str) -> str:
        bounds = re.sub(r"[{} ]", "", text)
        low, comma, high = bounds.partition(",")
        if (not low and not high) or any(each and int(each) > MAX_REPETITIONS for each in (low, high)):
            raise self._error(f"a count is {{n}}, {{n,}} or {{n,m}} of at most {MAX_REPETITIONS}", self._position)
        if high and int(low or 0) > int(high):
            raise self._error("a count's lower bound is above its upper one", self._position)
        return f"{{{low or 0},{high}}}" if comma else f"{{{low}}}"

    # -- tokens

    def _peek(self) -> re.Match[str] | None:
        if self._position >= len(self._source):
            return None
        token = _TOKEN.match(self._source, self._position)
        if token is None:
            raise self._error("this is not EBNF", self._position)
        return token

    def _next(self) -> re.Match[str] | None:
        token = self._peek()
        if token is not None:
            self._position = token.end()
            self._skip_blanks()
        return token

    def _skip_blanks(self) -> None:
        token = _TOKEN.match(self._source, self._position)
        if token is not None and token["blank"]:
            self._position = token.end()

    def _error(self, what: str, position: int) -> InvalidRequest:
        line = self._source.count("\n", 0, position) + 1
        column = position - self._source.rfind("\n", 0, position)
        return InvalidRequest(f"{what}, at line {line}, column {column}\n{caret(self._source, position)}")


def _rule_name(name: str) -> str:
    """A name Lark takes for a rule: lower case, no dashes, and never one of ours."""
    return "x_" + "".join(char if char.islower() or char.isdigit() else f"_{ord(char):x}_" for char in name)
