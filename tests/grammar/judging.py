"""Whether a constraint takes a text, asked of the matcher token by token."""

from __future__ import annotations

import json

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.grammar.builder import build_matcher, check_beginning
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.matcher import GrammarMatcher
from headrace.grammar.vocabulary import library_tokenizer
from tests.grammar.vocabulary import END, TABLE, encode

TOKENIZER = library_tokenizer(TABLE, encode)


def matcher_of(constraint: Constraint) -> GrammarMatcher:
    """A matcher at the beginning. Raises ``InvalidRequest`` for what is refused at any stage."""
    library = build_matcher(TOKENIZER, compile_constraint(constraint, GrammarLimits(), TABLE.special_tokens).text)
    check_beginning(TOKENIZER, library)
    return GrammarMatcher(library, (END,))


def matcher_for(kind: ConstraintKind, source: object) -> GrammarMatcher:
    return matcher_of(Constraint(kind, source if isinstance(source, str) else json.dumps(source)))


def schema_matcher(schema: object) -> GrammarMatcher:
    return matcher_for(ConstraintKind.JSON_SCHEMA, schema)


def takes(matcher: GrammarMatcher, text: str) -> bool:
    """Whether the whole text is an output, read from where the matcher stands; the matcher is left alone."""
    copy, ids = matcher.fork(), encode(text)
    return copy.accept_all(ids) == len(ids) and copy.may_end


def takes_value(matcher: GrammarMatcher, value: object) -> bool:
    return takes(matcher, json.dumps(value, ensure_ascii=False))
