"""From a constraint to the text of a library grammar: pure, one function per kind.

Owns the checks of a source before the library sees it, and the default policy for blanks. What a compiled text
costs to build, and whether it has a first token, is found out by ``builder.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import llguidance
import msgspec

from headrace.core.constraint import Constraint, ConstraintKind, Enforcement
from headrace.core.errors import InvalidRequest
from headrace.grammar.ebnf import ebnf_to_lark
from headrace.grammar.json_text import parse_json
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.rules import check_rules, quoted
from headrace.grammar.schema.findings import refusal
from headrace.grammar.schema.keywords import Schema
from headrace.grammar.schema.lowering import lower
from headrace.grammar.structural_tag import structural_tag_lark
from headrace.grammar.whitespace import whitespace_options


class GrammarText(msgspec.Struct, frozen=True):
    """A grammar in the library's own form, and what was left out of it with the client's consent."""

    text: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileContext:
    """What a compilation may use besides the source."""

    limits: GrammarLimits
    special_tokens: Mapping[str, int]


def compile_constraint(
    constraint: Constraint, limits: GrammarLimits, special_tokens: Mapping[str, int] | None = None
) -> GrammarText:
    """Translate a constraint. Raises ``InvalidRequest`` saying where the source is wrong or beyond a limit.

    ``special_tokens`` are the vocabulary's control tokens by spelling, for structural tags that name them.
    """
    num_bytes = len(constraint.source.encode(errors="replace"))
    if num_bytes > limits.max_source_bytes:
        raise InvalidRequest(
            f"the {constraint.kind.value} has {num_bytes} bytes but at most {limits.max_source_bytes} are allowed; "
            "shorten it"
        )
    if constraint.whitespace_pattern is not None and constraint.kind not in _JSON_KINDS:
        raise InvalidRequest(
            f"whitespace_pattern is for JSON, not for a {constraint.kind.value}; leave it out", "whitespace_pattern"
        )
    return _COMPILERS[constraint.kind](constraint, CompileContext(limits, special_tokens or {}))


def read_schema(source: str, limits: GrammarLimits) -> Schema:
    """A schema's text as a value. Raises ``InvalidRequest`` with line and column."""
    schema = parse_json(source, limits.max_depth, "the schema")
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"the schema must be an object, true or false; it is a {type(schema).__name__}")
    return schema


def json_grammar(lowered: Schema, whitespace_pattern: str | None) -> str:
    """The library's grammar of a lowered schema, with the policy for blanks."""
    options = whitespace_options(whitespace_pattern)
    shown = {"allOf": [lowered]} if isinstance(lowered, bool) else lowered
    return json.dumps({"grammars": [{"json_schema": {**shown, "x-guidance": options}}]})


def _json_schema(constraint: Constraint, context: CompileContext) -> GrammarText:
    lowered = lower(read_schema(constraint.source, context.limits), context.limits.max_properties)
    if lowered.refused and constraint.enforcement is Enforcement.STRICT:
        raise refusal(lowered.refused)
    warnings = tuple(f"#{each.place} is not enforced: {each.note}" for each in lowered.refused)
    return GrammarText(json_grammar(lowered.schema, constraint.whitespace_pattern), warnings)


def _json_object(constraint: Constraint, context: CompileContext) -> GrammarText:
    return GrammarText(json_grammar({"type": "object"}, constraint.whitespace_pattern))


def _regex(constraint: Constraint, context: CompileContext) -> GrammarText:
    if not constraint.source:
        raise InvalidRequest("the regex is empty; it matches nothing but an empty answer")
    # \d, \w and \s are ASCII's: nobody who writes \d{4} for a year wants Eastern Arabic digits
    return _lark_text(f"start: /{llguidance.regex_to_lark(constraint.source, 'dws')}/")


def _choice(constraint: Constraint, context: CompileContext) -> GrammarText:
    choices = parse_json(constraint.source, 1, "choice")
    if not isinstance(choices, list) or not all(isinstance(each, str) and each for each in choices) or not choices:
        raise InvalidRequest("choice must be a list of texts, none of them empty, with at least one")
    return _lark_text("start: " + " | ".join(quoted(each) for each in dict.fromkeys(choices)))


def _lark(constraint: Constraint, context: CompileContext) -> GrammarText:
    check_rules(constraint.source, context.limits.max_rules)
    return _lark_text(constraint.source)


def _lark_text(lark: str) -> GrammarText:
    return GrammarText(llguidance.LLMatcher.grammar_from_lark(lark))


def _ebnf(constraint: Constraint, context: CompileContext) -> GrammarText:
    return _lark_text(ebnf_to_lark(constraint.source, context.limits.max_rules))


def _structural_tag(constraint: Constraint, context: CompileContext) -> GrammarText:
    return _lark_text(structural_tag_lark(constraint.source, context.limits, context.special_tokens))


_JSON_KINDS = (ConstraintKind.JSON_SCHEMA, ConstraintKind.JSON_OBJECT)

_COMPILERS: dict[ConstraintKind, Callable[[Constraint, CompileContext], GrammarText]] = {
    ConstraintKind.JSON_SCHEMA: _json_schema,
    ConstraintKind.JSON_OBJECT: _json_object,
    ConstraintKind.REGEX: _regex,
    ConstraintKind.CHOICE: _choice,
    ConstraintKind.LARK: _lark,
    ConstraintKind.EBNF: _ebnf,
    ConstraintKind.STRUCTURAL_TAG: _structural_tag,
}
