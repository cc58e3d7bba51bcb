"""Trying a constraint out in the caller's own process, for tools of the command line.

A server uses the guarded worker instead: what is tried out here may take long, or take the process with it.
"""

from __future__ import annotations

from headrace.core.constraint import Constraint
from headrace.grammar.builder import build_matcher, check_beginning
from headrace.grammar.bytewise import END_OF_OUTPUT, byte_tokenizer
from headrace.grammar.compiler import compile_constraint, json_grammar
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.matcher import GrammarMatcher
from headrace.grammar.schema.keywords import Schema


def try_schema(lowered: Schema) -> None:
    """Build the grammar of a lowered schema. Raises ``InvalidRequest`` if there is none or it cannot begin."""
    _built(json_grammar(lowered, None))


def byte_matcher(constraint: Constraint) -> GrammarMatcher:
    """A matcher over single bytes. Raises ``InvalidRequest``."""
    return _built(compile_constraint(constraint, GrammarLimits()).text)


def _built(text: str) -> GrammarMatcher:
    tokenizer = byte_tokenizer()
    library = build_matcher(tokenizer, text)
    check_beginning(tokenizer, library)
    return GrammarMatcher(library, [END_OF_OUTPUT])
