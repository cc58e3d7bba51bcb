"""What a constraint may cost: checked before the library sees a source, and while it works.

The figures are from measurements of hostile inputs: a chain of 3,000 Lark rules overflows a normal stack, a
thousand optional properties need more items in a row than the library allows by itself.
"""

from __future__ import annotations

import llguidance
import msgspec


class GrammarLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``cpu_s`` and ``wall_s`` are seconds for one compilation in the worker, ``memory_bytes`` is its address space.

    ``max_depth`` counts nested arrays and objects of a JSON source, ``max_properties`` the named properties of a
    whole schema, ``max_rules`` the rules of a grammar.
    """

    max_source_bytes: int = 1 << 20
    max_depth: int = 100
    max_properties: int = 10_000
    max_rules: int = 2_000
    cpu_s: float = 0.8
    wall_s: float = 10.0
    memory_bytes: int = 4 << 30
    cache_bytes: int = 64 << 20


COMPILE_STACK_BYTES = 256 << 20
"""Stack of a thread that compiles: the library recurses over rules. Memory is taken only as it is used."""


def parser_limits() -> llguidance.LLParserLimits:
    """The library's own limits, with room for an object of a few thousand optional properties."""
    return llguidance.LLParserLimits(
        max_items_in_row=20_000,
        step_max_items=200_000,
        step_lexer_fuel=1_000_000,
        verbose_errors=False,
    )
