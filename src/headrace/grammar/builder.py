"""Building the library's matcher from a grammar's text, and finding out whether it can begin.

A grammar that compiles may still have no first token, or run out of the library's limits at its first mask; both are
refusals here. Building recurses deeply: call it on a thread with ``COMPILE_STACK_BYTES`` of stack.
"""

from __future__ import annotations

import re

import llguidance
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import InvalidRequest
from headrace.grammar.limits import parser_limits

_SHOWN_CHARS = 1200
_SHOWN_LINE_CHARS = 160


def build_matcher(tokenizer: llguidance.LLTokenizer, text: str) -> llguidance.LLMatcher:
    """A matcher at the beginning of the grammar. Raises ``InvalidRequest`` with the library's own words."""
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise InvalidRequest(library_error(matcher))
    return matcher


def check_beginning(tokenizer: llguidance.LLTokenizer, matcher: llguidance.LLMatcher) -> None:
    """Compute the first mask. Raises ``InvalidRequest`` if that fails or nothing may come first."""
    row: NDArray[np.int32] = np.zeros(mask_words(tokenizer.vocab_size), np.int32)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    if matcher.is_error():
        raise InvalidRequest(library_error(matcher))
    if not row.any():
        raise InvalidRequest("nothing satisfies this constraint: no token can come first")


def mask_words(vocab_size: int) -> int:
    """32-bit words in a row of a token mask."""
    return (vocab_size + 31) // 32


def library_error(matcher: llguidance.LLMatcher) -> str:
    """What the library says is wrong, without the parts that only its authors can use."""
    message = re.split(r"\n(?:<state>|<non-|stack backtrace)", matcher.get_error())[0].strip()
    message = message.removeprefix("Invalid regex: ").removeprefix("Invalid grammar: ")
    lines = [
        line if len(line) <= _SHOWN_LINE_CHARS else line[:_SHOWN_LINE_CHARS] + "..." for line in message.split("\n")
    ]
    message = "\n".join(lines)
    return message[:_SHOWN_CHARS] or "the grammar cannot be followed any further"
