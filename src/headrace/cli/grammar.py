"""``headrace grammar explain``: the automaton behind a constraint, and which tokens are valid in each state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.grammar.explain import Automaton

NUM_SHOWN_TOKENS = 12

_DESCRIPTION = """Print the automaton of a constraint: each state, what may follow, what is forced. A schema may be
written in short: --json-schema '{"name": string, "age": integer}'."""

_KINDS = {
    "json_schema": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "ebnf": ConstraintKind.EBNF,
    "lark": ConstraintKind.LARK,
}


def main(argv: Sequence[str]) -> int:
    parser = Parser("grammar", _DESCRIPTION, "explain --json-schema SCHEMA")
    parser.add_argument("action", choices=["explain"], help="the one thing there is to do")
    parser.add_argument("--json-schema", metavar="TEXT", help="a schema, in full or in short")
    parser.add_argument("--regex", metavar="TEXT", help="a regex for the whole output")
    parser.add_argument("--ebnf", metavar="TEXT", help="a grammar with a rule root")
    parser.add_argument("--lark", metavar="TEXT", help="a grammar with a rule start")
    parser.add_argument("--whitespace-pattern", metavar="REGEX", default="", help="blanks in JSON; default: none")
    parser.add_argument("--model", metavar="MODEL", help="also show which of a model's tokens are valid in each state")
    parser.add_argument("--max-states", type=int, metavar="N", default=200, help="states to look at; default: 200")
    parser.add_argument("--dot", metavar="FILE", type=Path, help="write a graph for graphviz")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write a picture")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    arguments = parser.parse(argv)

    from headrace.grammar.explain import explain
    from headrace.grammar.pictures import render_dot, render_svg, render_text

    constraint = _constraint({name: getattr(arguments, name) for name in _KINDS}, arguments.whitespace_pattern)
    automaton = explain(constraint, max(2, arguments.max_states))
    for path, render in ((arguments.dot, render_dot), (arguments.svg, render_svg)):
        if path is not None:
            path.write_text(render(automaton) + "\n", encoding="utf-8")
    if arguments.json:
        write_json(automaton, arguments.json)
    if arguments.json != "-":
        print(render_text(automaton, valid_tokens(automaton, constraint, arguments.model)))
    return 0


def _constraint(given: dict[str, str | None], whitespace_pattern: str) -> Constraint:
    from headrace.grammar.limits import GrammarLimits
    from headrace.grammar.shorthand import read_shorthand

    named = {name: source for name, source in given.items() if source is not None}
    if len(named) != 1:
        flags = ", ".join("--" + name.replace("_", "-") for name in _KINDS)
        raise ConfigError(f"explain takes exactly one of {flags}; {len(named)} are given")
    ((name, source),) = named.items()
    if name == "json_schema":
        schema = read_shorthand(source, GrammarLimits().max_depth)
        return Constraint(ConstraintKind.JSON_SCHEMA, schema, whitespace_pattern)
    return Constraint(_KINDS[name], source)


def valid_tokens(automaton: Automaton, constraint: Constraint, model: str | None) -> dict[int, list[str]]:
    """For each state, how many of a model's tokens may come there and the first of them; nothing without a model."""
    if model is None:
        return {}
    import numpy as np

    from headrace.checkpoint.reference import resolve_model
    from headrace.cli.progress import terminal_progress
    from headrace.engine.grammars import vocabulary_table
    from headrace.engine.tokenizer import load_tokenizer
    from headrace.grammar.builder import build_matcher, mask_words
    from headrace.grammar.compiler import compile_constraint
    from headrace.grammar.limits import GrammarLimits
    from headrace.grammar.matcher import GrammarMatcher
    from headrace.grammar.vocabulary import library_tokenizer

    tokenizer = load_tokenizer(resolve_model(model, terminal_progress()))
    table = vocabulary_table(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    text = compile_constraint(constraint, GrammarLimits(), table.special_tokens).text
    start = GrammarMatcher(build_matcher(library_tokenizer(table), text), table.end_token_ids)
    row = np.zeros(mask_words(table.size), np.int32)
    found = {}
    for state in automaton.states:
        matcher = start.fork()
        matcher.accept_all(tokenizer.encode_text(state.path.decode("utf-8", "ignore")))
        matcher.fill_row(row)
        valid = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        shown = [repr(tokenizer.token_text(token_id))[1:-1] for token_id in valid[:NUM_SHOWN_TOKENS]]
        more = [f"... of {len(valid)}"] if len(valid) > NUM_SHOWN_TOKENS else []
        found[state.number] = [*(f"`{each}`" for each in shown), *more]
    return found
