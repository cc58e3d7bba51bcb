"""Structural tags: free text in which certain beginnings are followed by something of a certain form.

The dialect is vLLM's and SGLang's, old and new: ``{"structures": [...], "triggers": [...]}`` and ``{"format": {...}}``
with ``const_string``, ``json_schema``, ``regex``, ``grammar``, ``any_text``, ``sequence``, ``or``, ``tag``,
``triggered_tags`` and ``tags_with_separator``. It becomes Lark, where text up to a beginning is a lazy terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

import llguidance

from headrace.core.errors import InvalidRequest
from headrace.grammar.json_text import parse_json
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.rules import quoted
from headrace.grammar.schema.findings import refusal
from headrace.grammar.schema.lowering import lower
from headrace.grammar.whitespace import whitespace_options

ANY_TEXT = "/(.|\\n)*/"


def structural_tag_lark(source: str, limits: GrammarLimits, special_tokens: Mapping[str, int]) -> str:
    """The Lark grammar of a structural tag. Raises ``InvalidRequest`` with the place of what is wrong.

    ``special_tokens`` are the spellings of control tokens: where a tag names one, that token is meant.
    """
    tag = parse_json(source, limits.max_depth, "the structural tag")
    writer = _Writer(limits, special_tokens)
    if isinstance(tag, dict) and "structures" in tag:
        start = writer.legacy(tag)
    elif isinstance(tag, dict) and isinstance(tag.get("format"), dict):
        start = writer.write(tag["format"], "#/format")
    else:
        raise InvalidRequest("a structural tag needs 'format', or 'structures' with 'triggers'")
    return "\n".join([f"start: {start}", *writer.rules])


class _Writer:
    """Writes rules; every method answers with an expression for the right side of one."""

    def __init__(self, limits: GrammarLimits, special_tokens: Mapping[str, int]) -> None:
        self._limits = limits
        self._special = special_tokens
        spellings = "|".join(re.escape(name) for name in sorted(special_tokens, key=len, reverse=True))
        self._special_pattern = re.compile(f"({spellings})") if spellings else None
        self.rules: list[str] = []

    def write(self, part: object, at: str) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str) or kind not in _KINDS:
            raise InvalidRequest(f"{at}/type must be one of {', '.join(_KINDS)}")
        return _KINDS[kind](self, part, at)

    def legacy(self, tag: dict[str, object]) -> str:
        """The older dialect: each structure has ``begin``, ``schema`` and ``end``."""
        structures = _list(tag, "structures", "#")
        tags = [
            {
                "begin": _field(each, "begin", f"#/structures/{index}"),
                "content": {"type": "json_schema", "json_schema": _any(each, "schema", f"#/structures/{index}")},
                "end": _field(each, "end", f"#/structures/{index}"),
            }
            for index, each in enumerate(structures)
        ]
        return self.triggered_tags({"triggers": tag.get("triggers"), "tags": tags}, "#")

    def const_string(self, part: dict[str, object], at: str) -> str:
        return self._literal(_field(part, "value", at))

    def json_schema(self, part: dict[str, object], at: str) -> str:
        schema = _any(part, "json_schema", at)
        if not isinstance(schema, dict | bool):
            raise InvalidRequest(f"{at}/json_schema must be a schema")
        lowered = lower(schema, self._limits.max_properties)
        if lowered.refused:
            raise refusal(lowered.refused)
        shown = {"allOf": [lowered.schema]} if isinstance(lowered.schema, bool) else lowered.schema
        return self._rule("%json " + json.dumps({**shown, "x-guidance": whitespace_options(None)}))

    def regex(self, part: dict[str, object], at: str) -> str:
        return self._rule(f"/{llguidance.regex_to_lark(_field(part, 'pattern', at), 'dws')}/")

    def any_text(self, part: dict[str, object], at: str) -> str:
        return self._terminal(_without(_strings(part.get("excludes", []), f"{at}/excludes")))

    def sequence(self, part: dict[str, object], at: str) -> str:
        elements = _list(part, "elements", at)
        return " ".join(f"({self.write(each, f'{at}/elements/{i}')})" for i, each in enumerate(elements))

    def either(self, part: dict[str, object], at: str) -> str:
        elements = _list(part, "elements", at)
        return self._rule(" | ".join(self.write(each, f"{at}/elements/{i}") for i, each in enumerate(elements)))

    def tag(self, part: dict[str, object], at: str) -> str:
        return " ".join(filter(None, [self._literal(_field(part, "begin", at)), self._inside(part, at)]))

    def triggered_tags(self, part: dict[str, object], at: str) -> str:
        """Text with tags in it: what follows a trigger must be one of the tags that begin with it."""
        triggers = _strings(part.get("triggers"), f"{at}/triggers")
        tags = _list(part, "tags", at)
        if not triggers or not tags:
            raise InvalidRequest(f"{at} needs at least one of triggers and of tags")
        branches = [self._triggered(trigger, tags, at) for trigger in triggers]
        free = self._terminal(_without([*triggers, *_strings(part.get("excludes", []), f"{at}/excludes")]))
        one = self._rule(" | ".join(branches))
        if part.get("stop_after_first"):
            return f"{one}" if part.get("at_least_one") else f"({one} | {free})"
        return f"{one}+ {free}" if part.get("at_least_one") else f"{one}* {free}"

    def tags_with_separator(self, part: dict[str, object], at: str) -> str:
        tags = _list(part, "tags", at)
        one = self._rule(" | ".join(self.tag(_dict(each, at), f"{at}/tags/{i}") for i, each in enumerate(tags)))
        separator = self._literal(_field(part, "separator", at))
        several = one if part.get("stop_after_first") else f"{one} ({separator} {one})*"
        return several if part.get("at_least_one") else f"({several})?"

    def grammar(self, part: dict[str, object], at: str) -> str:
        raise InvalidRequest(f"{at}: a grammar inside a structural tag is not available; use regex or json_schema")

    def _triggered(self, trigger: str, tags: Sequence[object], at: str) -> str:
        """Free text up to a trigger, then the rest of a tag that begins with it."""
        rests = []
        for index, each in enumerate(tags):
            tag, place = _dict(each, at), f"{at}/tags/{index}"
            begin = _field(tag, "begin", place)
            if begin.startswith(trigger):
                rests.append(" ".join(filter(None, [self._literal(begin[len(trigger) :]), self._inside(tag, place)])))
        if not rests:
            raise InvalidRequest(f"{at}/triggers: no tag begins with {trigger!r}")
        if trigger in self._special:
            text = self._terminal(ANY_TEXT)
            head = f"{text} <[{self._special[trigger]}]>"
        else:
            head = self._lazy(f"{ANY_TEXT} {quoted(trigger)}")
        return f"{head} ({' | '.join(rests)})"

    def _inside(self, tag: dict[str, object], at: str) -> str:
        """A tag's content and end; free text is lazy there, so that it ends with the first end."""
        content = _dict(tag.get("content"), f"{at}/content")
        ends = tag.get("end", "")
        end = ends if isinstance(ends, str) else _strings(ends, f"{at}/end")[0]
        if content.get("type") == "any_text" and end and end not in self._special:
            return self._lazy(f"{ANY_TEXT} {quoted(end)}")
        return " ".join(filter(None, [f"({self.write(content, f'{at}/content')})", self._literal(end)]))

    def _literal(self, text: str) -> str:
        """A text in which spellings of control tokens are the tokens."""
        if self._special_pattern is None:
            return quoted(text) if text else ""
        parts = [each for each in self._special_pattern.split(text) if each]
        return " ".join(f"<[{self._special[each]}]>" if each in self._special else quoted(each) for each in parts)

    def _rule(self, body: str) -> str:
        return self._define(f"r{len(self.rules)}", body)

    def _lazy(self, body: str) -> str:
        name = f"r{len(self.rules)}"
        self._define(f"{name}[lazy]", body)
        return name

    def _terminal(self, body: str) -> str:
        return self._define(f"T{len(self.rules)}", body)

    def _define(self, name: str, body: str) -> str:
        if len(self.rules) >= self._limits.max_rules:
            raise InvalidRequest(f"the structural tag makes more than {self._limits.max_rules} rules; simplify it")
        self.rules.append(f"{name}: {body}")
        return name


def _without(excluded: Sequence[str]) -> str:
    """Any text in which none of some texts occurs."""
    return " & ".join(
        [ANY_TEXT, *(f"~/(.|\\n)*{re.escape(each).replace('/', chr(92) + '/')}(.|\\n)*/" for each in excluded)]
    )


def _field(part: object, name: str, at: str) -> str:
    value = _any(part, name, at)
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}/{name} must be text; it is of type {type(value).__name__}")
    return value


def _any(part: object, name: str, at: str) -> object:
    if not isinstance(part, dict) or name not in part:
        raise InvalidRequest(f"{at}/{name} is missing")
    return part[name]


def _list(part: dict[str, object], name: str, at: str) -> list[object]:
    value = _any(part, name, at)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{at}/{name} must be a list with at least one entry")
    return value


def _dict(value: object, at: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at} must be an object")
    return value


def _strings(value: object, at: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise InvalidRequest(f"{at} must be a list of texts, none of them empty")
    return [each for each in value if isinstance(each, str)]


_KINDS: dict[str, Callable[[_Writer, dict[str, object], str], str]] = {
    "const_string": _Writer.const_string,
    "json_schema": _Writer.json_schema,
    "regex": _Writer.regex,
    "grammar": _Writer.grammar,
    "any_text": _Writer.any_text,
    "sequence": _Writer.sequence,
    "or": _Writer.either,
    "tag": _Writer.tag,
    "triggered_tags": _Writer.triggered_tags,
    "tags_with_separator": _Writer.tags_with_separator,
}
